// Requests at a rate that does not wait for answers: JSON and binary tensors over HTTP, raw tensors over gRPC.
import encoding from 'k6/encoding';
import grpc from 'k6/net/grpc';
import http from 'k6/http';
import { check } from 'k6';

const url = `http://${__ENV.HTTP}/v2/models/mlp/infer`;
const x = new Float32Array([1, -2, 3, -4, 5, -6, 7, -8]);
const wanted = JSON.parse(__ENV.WANTED);
const client = new grpc.Client();
client.loadProtoset(__ENV.PROTOSET);

function scenario(exec) {
  return { executor: 'constant-arrival-rate', exec, rate: Number(__ENV.RATE || 100), timeUnit: '1s', duration: __ENV.DURATION || '4s', preAllocatedVUs: 20, maxVUs: 200 };
}

export const options = {
  scenarios: { json: scenario('json'), binary: scenario('binary'), rpc: scenario('rpc'), late: scenario('late') },
  thresholds: {
    checks: ['rate==1'], 'checks{scenario:json}': ['rate==1'], 'checks{scenario:binary}': ['rate==1'], 'checks{scenario:rpc}': ['rate==1'],
    'http_req_failed{scenario:json}': ['rate==0'], 'http_req_failed{scenario:binary}': ['rate==0'],
  },
};

function near(values) {
  return values.length === wanted.length && wanted.every((one, k) => Math.abs(one - values[k]) <= 1e-4 * Math.max(1, Math.abs(one)));
}

export function json() {
  const body = JSON.stringify({ inputs: [{ name: 'x', shape: [1, 8], datatype: 'FP32', data: Array.from(x) }] });
  const answer = http.post(url, body, { headers: { 'Content-Type': 'application/json', 'x-tenant': 'json' } });
  check(answer, { 'json: 200': (one) => one.status === 200, 'json: numbers': (one) => near(one.json('outputs.0.data')) });
}

export function binary() {
  const header = JSON.stringify({ inputs: [{ name: 'x', shape: [1, 8], datatype: 'FP32', parameters: { binary_data_size: 32 } }], parameters: { binary_data_output: true } });
  const body = new Uint8Array(header.length + 32);
  for (let k = 0; k < header.length; k++) body[k] = header.charCodeAt(k);
  body.set(new Uint8Array(x.buffer), header.length);
  const answer = http.post(url, body.buffer, { responseType: 'binary', headers: { 'Inference-Header-Content-Length': String(header.length), 'x-tenant': 'binary' } });
  const start = Number(answer.headers['Inference-Header-Content-Length']);
  check(answer, { 'binary: 200': (one) => one.status === 200, 'binary: numbers': (one) => near(Array.from(new Float32Array(one.body.slice(start)))) });
}

let connected = false;
export function rpc() {
  if (!connected) client.connect(__ENV.GRPC, { plaintext: true });
  connected = true;
  const answer = client.invoke('inference.GRPCInferenceService/ModelInfer', {
    model_name: 'mlp', inputs: [{ name: 'x', datatype: 'FP32', shape: [1, 8] }], raw_input_contents: [encoding.b64encode(x.buffer)],
  }, { metadata: { 'x-tenant': 'rpc' } });
  const ok = answer.status === grpc.StatusOK;
  check(answer, { 'rpc: OK': () => ok, 'rpc: numbers': (one) => ok && near(Array.from(new Float32Array(encoding.b64decode(one.message.rawOutputContents[0])))) });
}

// A deadline that may pass: an answer, or a refusal with its reason.
export function late() {
  const body = JSON.stringify({ parameters: { timeout: 300 }, inputs: [{ name: 'x', shape: [1, 8], datatype: 'FP32', data: Array.from(x) }] });
  const answer = http.post(url, body, { headers: { 'Content-Type': 'application/json', 'x-tenant': 'late' } });
  check(answer, { 'late: 200, or 503 with a reason': (one) => one.status === 200 || (one.status === 503 && /refused|Request timeout expired/.test(one.json('error'))) });
}
