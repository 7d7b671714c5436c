// Conversations in this browser: IndexedDB, a record a message, so that a long conversation is not written anew with
// each answer. Where the browser has none (a private window), they live as long as the page. Knows no view.

const NAME = "luce-conversations";
let opened = null;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

const done = request => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function transact(names, mode, act) {
  const database = await open();
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(names, mode);
    let result;
    transaction.oncomplete = () => resolve(result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
    Promise.resolve(act(transaction)).then(value => { result = value; });
  });
}

// Throws where nothing is kept: whoever opens the page first says so.
export const conversations = () => transact(["conversations"], "readonly", it => done(it.objectStore("conversations").getAll()));

export const messagesOf = id =>
  transact(["messages"], "readonly", it => done(it.objectStore("messages").index("conversation").getAll(id)));

export const put = (conversation, ...messages) => transact(["conversations", "messages"], "readwrite", it => {
  it.objectStore("conversations").put(conversation);
  for (const message of messages) it.objectStore("messages").put(message);
});

export async function remove(id) {
  const messages = await messagesOf(id);
  await transact(["conversations", "messages"], "readwrite", it => {
    it.objectStore("conversations").delete(id);
    for (const message of messages) it.objectStore("messages").delete(message.id);
  });
}
