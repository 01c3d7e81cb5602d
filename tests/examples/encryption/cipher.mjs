// Encrypts and decrypts parts of jobs as docs/encryption.md says, with the standard library of Node 18 or newer.
//
//   DEFERD_CIPHER_KEYS=keys node cipher.mjs < calls
//
// Each line of the input is {"do": "encrypt" or "decrypt", "topic": ..., "part": ..., "value": ...}, and each line of the
// output {"value": ...} or {"error": ...}. A part is body, result, error or header:NAME.

import { createCipheriv, createDecipheriv, randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";

const MARK = "deferd:encrypted";
const VERSION = "1";
const isJson = (part) => part === "body" || part === "result";

// One key a line, ID:BASE64, the one that encrypts first.
export function readKeys(text) {
  const words = text.replace(/#.*/g, "").split(/[\s,]+/).filter(Boolean);
  return new Map(words.map((word) => [word.split(":")[0], Buffer.from(word.split(":")[1], "base64url")]));
}

const boundTo = (id, topic, part) => Buffer.from([MARK, VERSION, id, part, topic].join("\n"));

export function encrypt(keys, value, topic, part = "body") {
  const [id, key] = keys.entries().next().value;
  const nonce = randomBytes(12);
  const cipher = createCipheriv("aes-256-gcm", key, nonce);
  cipher.setAAD(boundTo(id, topic, part));
  const plain = isJson(part) ? JSON.stringify(value) : value;
  const sealed = Buffer.concat([nonce, cipher.update(plain, "utf8"), cipher.final(), cipher.getAuthTag()]);
  const data = sealed.toString("base64url");
  return isJson(part) ? { [MARK]: VERSION, key: id, data } : `${MARK}:${VERSION}:${id}:${data}`;
}

// A value that is not encrypted is returned as it is.
export function decrypt(keys, value, topic, part = "body") {
  let version, id, data;
  if (isJson(part)) {
    if (value === null || typeof value !== "object" || !(MARK in value)) return value;
    ({ [MARK]: version, key: id, data } = value);
    if (Object.keys(value).length !== 3) throw new Error("it has not the parts of an encrypted value");
  } else {
    if (!value.startsWith(`${MARK}:`)) return value;
    const parts = value.slice(MARK.length + 1).split(":");
    if (parts.length !== 3) throw new Error("it has not the parts of an encrypted value");
    [version, id, data] = parts;
  }
  if (version !== VERSION) throw new Error(`version ${version} of encrypted values is not known`);
  const key = keys.get(id);
  if (!key) throw new Error(`there is no key ${id}`);
  if (typeof data !== "string" || !/^[\w-]*$/.test(data)) throw new Error("its data is not base64url");
  const sealed = Buffer.from(data, "base64url");
  const decipher = createDecipheriv("aes-256-gcm", key, sealed.subarray(0, 12), { authTagLength: 16 });
  decipher.setAAD(boundTo(id, topic, part));
  decipher.setAuthTag(sealed.subarray(-16));
  const plain = Buffer.concat([decipher.update(sealed.subarray(12, -16)), decipher.final()]).toString("utf8");
  return isJson(part) ? JSON.parse(plain) : plain;
}

const keys = readKeys(readFileSync(process.env.DEFERD_CIPHER_KEYS, "utf8"));
for (const line of readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const call = JSON.parse(line);
  let answer;
  try {
    const act = call.do === "encrypt" ? encrypt : decrypt;
    answer = { value: act(keys, call.value, call.topic, call.part) };
  } catch (error) {
    answer = { error: error.message };
  }
  console.log(JSON.stringify(answer));
}
