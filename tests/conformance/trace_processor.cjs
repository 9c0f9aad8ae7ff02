// Runs Perfetto's trace processor, the WebAssembly module its UI runs in a browser, for a program at the other end of
// two pipes: what comes on standard input goes to its RPC, what it answers goes to standard output.
"use strict";
const fs = require("fs");
const path = require("path");
const vm = require("vm");

const folder = process.argv[2];

// The module is built for a web worker, which loads its code in one blocking request.
class FileRequest {
  open(method, name) {
    this.file = path.join(folder, path.basename(name));
  }
  send() {
    this.response = new Uint8Array(fs.readFileSync(this.file)).buffer;
  }
}

function writeAll(bytes) {
  for (let done = 0; done < bytes.length; ) {
    try {
      done += fs.writeSync(1, bytes, done);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error; // the reader is behind
    }
  }
}

const messages = console.error;
const worker = { location: { href: "file:///engine_bundle.js" } };
const context = vm.createContext({
  self: worker, location: worker.location, WorkerGlobalScope: class {}, XMLHttpRequest: FileRequest,
  TextDecoder, TextEncoder, URL, setTimeout, performance, crypto,
  console: { log: messages, warn: messages, error: messages },
});
// arrays and WebAssembly of the context are other classes than those out here
const Bytes = vm.runInContext("Uint8Array", context);
const port = { postMessage: writeAll };
vm.runInContext(fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8"), context);
worker.onmessage({ data: port });
setImmediate(() => process.stdin.on("data", (chunk) => port.onmessage({ data: new Bytes(chunk) })));
