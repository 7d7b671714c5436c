"""What the engines of one server have to share, since a request may run on any, and go on on another one."""

from luce.supervisor.config import ConfigError, SupervisorConfig


def check_engines(config: SupervisorConfig) -> None:
    """Reads the models' headers. Raises ConfigError."""
    _check_model(config)
    _check_projector(config)
    _check_reading(config)


def _check_model(config: SupervisorConfig) -> None:
    """A prompt's ids are made once, and any engine may get them, or go on with another's answer."""
    from luce.supervisor.models.same_model import difference

    first, *others = dict.fromkeys(config.daemon_config(engine).model for engine in config.engine_configs())
    for other in others:
        if (how := difference(first, other)) is not None:
            raise ConfigError(
                f"engines: {other} is another model than {first} ({how}): the engines of one server run one model;"
                " start a server for each"
            )


def _check_projector(config: SupervisorConfig) -> None:
    """The ids that stand for an image are its projector's."""
    if len({config.daemon_config(engine).mmproj for engine in config.engine_configs()}) > 1:
        raise ConfigError("engines: all engines of one server have the same mmproj, or none has one")


def _check_reading(config: SupervisorConfig) -> None:
    """A request may run on any engine, and go on on another one."""
    configs = [config.daemon_config(engine) for engine in config.engine_configs()]
    if len({(other.prefill, other.prefill_scorer is None) for other in configs}) > 1:
        raise ConfigError(
            "engines: all engines of one server have the same prefill, and all have a prefill_scorer or none has one"
        )
