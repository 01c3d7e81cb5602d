// A worker in Go, of the standard library only; docs/other-languages.md says why each call is made as it is. One job at
// a time: start several processes for more. DEFERD_GRACE is how many seconds the handler gets after SIGTERM. Run it with
// DEFERD_URL=http://localhost:8000 DEFERD_TOPIC=mail DEFERD_KEY=... go run worker.go
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"
)

type Fields = map[string]any
type Job struct {
	Topic, ID, Receipt string
	TTR                float64
	Body               map[string]any
}
type Reply struct {
	Status     int // 0: there was no response
	RetryAfter float64
	Detail     string
	Jobs       []Job
}

// handle is your work. It returns what to report: finish, release or bury, with the fields of that call. ctx ends when
// the work must end, because the worker stops or the job was cancelled; then nothing is reported.
func handle(ctx context.Context, job Job) (verb string, fields Fields) {
	what, _ := job.Body["do"].(string)
	seconds, _ := job.Body["seconds"].(float64)
	switch what {
	case "fail":
		return "release", Fields{"error": "failed as the job says"}
	case "snooze":
		return "release", Fields{"count": false, "delay": seconds}
	case "reject":
		return "bury", Fields{"error": "rejected as the job says"}
	case "sleep":
		if !sleep(ctx, seconds) {
			log.Println("cancelled", job.ID)
			return "release", Fields{"error": "the worker stopped", "delay": 0}
		}
	}
	return "finish", Fields{"result": "done: " + what}
}

var always, errOver = context.Background(), errors.New("the job was cancelled, or another consumer has it")
var over, tryAgain = []int{404, 409, 410}, []int{0, 408, 429, 500, 502, 503, 504}

func call(ctx context.Context, timeout float64, path string, body any) (reply Reply) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(timeout*1e9))
	defer cancel()
	content, _ := json.Marshal(body)
	request, _ := http.NewRequestWithContext(ctx, "POST", os.Getenv("DEFERD_URL")+path, bytes.NewReader(content))
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+os.Getenv("DEFERD_KEY")) // unread where the service has no keys
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return Reply{Detail: err.Error()}
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&reply); err != nil && response.StatusCode < 300 {
		return Reply{Detail: err.Error()}
	}
	reply.Status = response.StatusCode
	reply.RetryAfter, _ = strconv.ParseFloat(response.Header.Get("Retry-After"), 64)
	return reply
}

// insist repeats a call until it has a definite response or ctx ends: after Retry-After at least, and ever later.
func insist(ctx context.Context, timeout float64, path string, body any) Reply {
	for pause := 0.1; ; pause = min(2*pause, 5) {
		reply := call(ctx, timeout, path, body)
		if !slices.Contains(tryAgain, reply.Status) || ctx.Err() != nil {
			return reply
		}
		log.Println("trying again:", reply.Status, reply.Detail)
		sleep(ctx, max(reply.RetryAfter, pause*(0.5+rand.Float64()/2)))
	}
}

func sleep(ctx context.Context, seconds float64) (lasted bool) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(seconds * 1e9)):
	}
	return ctx.Err() == nil
}

func work(grace context.Context, job Job) {
	log.Println("began", job.ID)
	path, receipt := "/jobs/"+job.Topic+"/"+job.ID+"/", job.Receipt
	ctx, cancel := context.WithCancelCause(grace)
	go func() { // extends the lease at its half, until the handler has ended or the delivery is over
		for sleep(ctx, job.TTR/2) {
			if reply := insist(ctx, 5, path+"touch", Fields{"receipt": receipt}); slices.Contains(over, reply.Status) {
				cancel(errOver)
			}
		}
	}()
	verb, fields := handle(ctx, job)
	if cancel(nil); context.Cause(ctx) == errOver {
		return // forget the job
	}
	fields["receipt"] = receipt
	if reply := insist(always, 5, path+verb, fields); reply.Status >= 300 {
		log.Println(verb, job.ID, reply.Status, reply.Detail)
		if verb == "finish" && !slices.Contains(over, reply.Status) { // such as a result that is too large
			insist(always, 5, path+"release", Fields{"receipt": receipt, "error": reply.Detail})
		}
	}
}

func main() {
	stop, _ := signal.NotifyContext(always, syscall.SIGTERM, syscall.SIGINT)
	grace, endGrace := context.WithCancel(always)
	context.AfterFunc(stop, func() {
		seconds, _ := strconv.ParseFloat(cmp.Or(os.Getenv("DEFERD_GRACE"), "30"), 64)
		time.AfterFunc(time.Duration(seconds*1e9), endGrace)
		time.AfterFunc(time.Duration((seconds+10)*1e9), func() { os.Exit(1) }) // the lease ends by itself
	})
	topic, consumer := "/topics/"+os.Getenv("DEFERD_TOPIC"), "go-"+strconv.Itoa(os.Getpid())
	for stop.Err() == nil {
		pop := topic + "/pop?consumer=" + consumer + "&request_id=" + strconv.FormatUint(rand.Uint64(), 16)
		reply := insist(stop, 25, pop+"&wait=20", nil)
		if stop.Err() != nil { // the response may have crossed the signal: ask once more, without waiting
			reply = call(always, 5, pop+"&wait=0", nil)
		} else if reply.Status != 200 {
			log.Fatalln("pop:", reply.Status, reply.Detail)
		}
		for _, job := range reply.Jobs {
			if stop.Err() == nil {
				work(grace, job)
			} else {
				held := Fields{"id": job.ID, "receipt": job.Receipt}
				insist(always, 5, "/topics/"+job.Topic+"/return", Fields{"jobs": []Fields{held}})
			}
		}
	}
}
