"""Memory that travels: files of the disk cache, also in an object store, for replicas that have not computed them.

Called by `supervisor` and `cli`. Calls `scheduling` and `engine`; knows texts only by the names of their pages.
"""
