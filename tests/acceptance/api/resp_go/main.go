// Calls deferd with go-redis and prints what it got as JSON, for test_resp_clients.py.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// field returns a field of a job: RESP3 has maps, RESP2 flat lists.
func field(reply any, name string) string {
	switch job := reply.(type) {
	case map[any]any:
		return fmt.Sprint(job[name])
	case []any:
		for at := 0; at+1 < len(job); at += 2 {
			if job[at] == name {
				return fmt.Sprint(job[at+1])
			}
		}
	}
	return ""
}

func main() {
	ctx := context.Background()
	topic := os.Args[2]
	version, err := strconv.Atoi(os.Args[3])
	must(err)
	client := redis.NewClient(&redis.Options{Addr: os.Args[1], Protocol: version})
	defer client.Close()

	added, err := client.SAdd(ctx, topic, "one", 0, "two", 0).Result()
	must(err)
	live, err := client.SCard(ctx, topic).Result()
	must(err)
	popped, err := client.SPopN(ctx, topic, 10).Result()
	must(err)

	_, err = client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for number := range 100 {
			pipe.SAdd(ctx, topic, fmt.Sprint(number), 0)
		}
		return nil
	})
	must(err)
	pipelined, err := client.SPopN(ctx, topic, 1000).Result()
	must(err)
	_, empty := client.SPop(ctx, topic).Result()

	must(client.Do(ctx, "DEFERD.PUT", topic, "a", "body").Err())
	jobs, err := client.Do(ctx, "DEFERD.POP", topic, "WAIT", 1000).Slice()
	must(err)
	finished, err := client.Do(ctx, "DEFERD.FINISH", topic, "a", field(jobs[0], "receipt")).Result()
	must(err)
	stale := client.Do(ctx, "DEFERD.FINISH", topic, "a", field(jobs[0], "receipt")).Err()
	topics, err := client.Keys(ctx, topic+"*").Result()
	must(err)

	must(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"added":     added,
		"live":      live,
		"popped":    popped,
		"pipelined": len(pipelined),
		"empty":     empty == redis.Nil,
		"job":       field(jobs[0], "body"),
		"finished":  field(finished, "state"),
		"stale":     strings.SplitN(stale.Error(), " ", 2)[0],
		"topics":    topics,
	}))
}
