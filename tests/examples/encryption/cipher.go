// Encrypts and decrypts parts of jobs as docs/encryption.md says, with the standard library of Go 1.21 or newer.
//
//	DEFERD_CIPHER_KEYS=keys go run cipher.go < calls
//
// Each line of the input is {"do": "encrypt" or "decrypt", "topic": ..., "part": ..., "value": ...}, and each line of the
// output {"value": ...} or {"error": ...}. A part is body, result, error or header:NAME.
package main

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

const mark, version = "deferd:encrypted", "1"

// Keys are the keys of an application; the one with the id First encrypts.
type Keys struct {
	First string
	ByID  map[string]cipher.AEAD
}

type encrypted struct {
	Version string `json:"deferd:encrypted"`
	Key     string `json:"key"`
	Data    string `json:"data"`
}

// ReadKeys reads one key a line, ID:BASE64, the one that encrypts first.
func ReadKeys(text string) (Keys, error) {
	keys := Keys{ByID: map[string]cipher.AEAD{}}
	for _, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(strings.ReplaceAll(line, ",", " ")) {
			id, secret, _ := strings.Cut(word, ":")
			key, err := base64.RawURLEncoding.DecodeString(secret)
			if err != nil || len(key) != 32 {
				return keys, errors.New("a key is not ID:BASE64 of 32 bytes")
			}
			block, err := aes.NewCipher(key)
			if err != nil {
				return keys, err
			}
			if keys.ByID[id], err = cipher.NewGCM(block); err != nil {
				return keys, err
			}
			if keys.First == "" {
				keys.First = id
			}
		}
	}
	return keys, nil
}

func isJSON(part string) bool { return part == "body" || part == "result" }

func boundTo(id, topic, part string) []byte {
	return []byte(strings.Join([]string{mark, version, id, part, topic}, "\n"))
}

// Encrypt returns what takes the place of a part of a job: value and result are JSON, also where they are texts.
func Encrypt(keys Keys, value json.RawMessage, topic, part string) (json.RawMessage, error) {
	plain := []byte(value)
	if !isJSON(part) {
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			return nil, err
		}
		plain = []byte(text)
	}
	nonce := make([]byte, 12)
	if _, err := rand.Read(nonce); err != nil {
		return nil, err
	}
	sealed := keys.ByID[keys.First].Seal(nonce, nonce, plain, boundTo(keys.First, topic, part))
	data := base64.RawURLEncoding.EncodeToString(sealed)
	if isJSON(part) {
		return json.Marshal(encrypted{version, keys.First, data})
	}
	return json.Marshal(strings.Join([]string{mark, version, keys.First, data}, ":"))
}

// Decrypt returns what Encrypt was called with. A value that is not encrypted is returned as it is.
func Decrypt(keys Keys, value json.RawMessage, topic, part string) (json.RawMessage, error) {
	var found encrypted
	if isJSON(part) {
		var fields map[string]json.RawMessage
		if json.Unmarshal(value, &fields) != nil || fields[mark] == nil {
			return value, nil
		}
		if err := json.Unmarshal(value, &found); err != nil || len(fields) != 3 {
			return nil, errors.New("it has not the parts of an encrypted value")
		}
	} else {
		var text string
		if err := json.Unmarshal(value, &text); err != nil {
			return nil, err
		}
		rest, isMarked := strings.CutPrefix(text, mark+":")
		if !isMarked {
			return value, nil
		}
		parts := strings.Split(rest, ":")
		if len(parts) != 3 {
			return nil, errors.New("it has not the parts of an encrypted value")
		}
		found = encrypted{parts[0], parts[1], parts[2]}
	}
	if found.Version != version {
		return nil, fmt.Errorf("version %s of encrypted values is not known", found.Version)
	}
	key, isKnown := keys.ByID[found.Key]
	if !isKnown {
		return nil, fmt.Errorf("there is no key %s", found.Key)
	}
	sealed, err := base64.RawURLEncoding.DecodeString(found.Data)
	if err != nil || len(sealed) < 28 {
		return nil, errors.New("its data is not base64url of a nonce and a tag")
	}
	plain, err := key.Open(nil, sealed[:12], sealed[12:], boundTo(found.Key, topic, part))
	if err != nil || isJSON(part) {
		return plain, err
	}
	return json.Marshal(string(plain))
}

func main() {
	text, err := os.ReadFile(os.Getenv("DEFERD_CIPHER_KEYS"))
	if err != nil {
		panic(err)
	}
	keys, err := ReadKeys(string(text))
	if err != nil {
		panic(err)
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var call struct {
			Do, Topic, Part string
			Value           json.RawMessage
		}
		if err := json.Unmarshal(bytes.TrimSpace(lines.Bytes()), &call); err != nil {
			panic(err)
		}
		act := Decrypt
		if call.Do == "encrypt" {
			act = Encrypt
		}
		answer := map[string]any{}
		if value, err := act(keys, call.Value, call.Topic, call.Part); err != nil {
			answer["error"] = err.Error()
		} else {
			answer["value"] = value
		}
		written, _ := json.Marshal(answer)
		fmt.Println(string(written))
	}
}
