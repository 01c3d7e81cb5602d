// Program puts, pops and finishes jobs with the client that oapi-codegen makes from openapi/openapi.yaml.
//
// Its arguments are the URL of a service, the URL of a service whose store is down, and a topic. It writes what it saw
// to standard output; tests/acceptance/api/generated_scenario.py states the expected output.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"deferd.test/program/generated/deferd"
)

// Not `go tool`: that compiles Go's library in its own way, which the program could not share. The line `tool` of go.mod
// is what keeps the generator there.

//go:generate go run github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen -config oapi-codegen.yaml ../../../../openapi/openapi.yaml

type popped struct {
	ID      string `json:"id"`
	Attempt int64  `json:"attempt"`
	Body    any    `json:"body"`
}

type failure struct {
	Status int                `json:"status"`
	Code   deferd.ProblemCode `json:"code"`
}

type schedule struct {
	Every       *float64 `json:"every"`
	Opens       *string  `json:"opens"`
	MaxAttempts *int     `json:"max_attempts"`
}

type report struct {
	Schedule    schedule             `json:"schedule"`
	Put         deferd.JobState      `json:"put"`
	TTR         float64              `json:"ttr"`
	Backoffs    []deferd.Backoff     `json:"backoffs"`
	Popped      popped               `json:"popped"`
	Finished    deferd.FinishedState `json:"finished"`
	Paused      []bool               `json:"paused"`
	Conflict    failure              `json:"conflict"`
	Gone        failure              `json:"gone"`
	Unavailable failure              `json:"unavailable"`
}

func main() {
	log.SetFlags(0)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	seen, err := run(ctx, os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(seen); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url, urlWithoutStore, topic string) (*report, error) {
	client, err := deferd.NewClientWithResponses(url)
	if err != nil {
		return nil, err
	}
	seen := &report{}
	for _, step := range []func(context.Context, *deferd.ClientWithResponses, string, *report) error{
		putPopFinish, setBackoffs, pauseAndResume, finishCancelled, makeSchedule,
	} {
		if err := step(ctx, client, topic, seen); err != nil {
			return nil, err
		}
	}

	client, err = deferd.NewClientWithResponses(urlWithoutStore)
	if err != nil {
		return nil, err
	}
	put, err := client.PutJobWithResponse(ctx, deferd.PutJob{Topic: topic})
	if err != nil {
		return nil, err
	}
	seen.Unavailable, err = problem(put.ApplicationproblemJSON503, put.StatusCode(), put.Body)
	return seen, err
}

func putPopFinish(ctx context.Context, client *deferd.ClientWithResponses, topic string, seen *report) error {
	job := deferd.PutJob{
		Topic:  topic,
		Id:     pointer("order-1"),
		Body:   map[string]any{"order": 1},
		Delay:  pointer(0.3),
		Ttr:    pointer(86399.999),
		Retain: pointer(60.0),
	}
	put, err := client.PutJobWithResponse(ctx, job)
	if err != nil {
		return err
	}
	if put.JSON201 == nil {
		return unexpected(put.StatusCode(), put.Body)
	}
	seen.Put, seen.TTR = put.JSON201.State, put.JSON201.Ttr

	delivery, err := popOne(ctx, client, topic)
	if err != nil {
		return err
	}
	seen.Popped = popped{delivery.Id, delivery.Attempt, delivery.Body}

	done := deferd.FinishJob{Receipt: &delivery.Receipt, Result: "closed"}
	finished, err := client.FinishJobWithResponse(ctx, topic, delivery.Id, done)
	if err != nil {
		return err
	}
	if finished.JSON200 == nil {
		return unexpected(finished.StatusCode(), finished.Body)
	}
	seen.Finished = finished.JSON200.State

	again, err := client.PutJobWithResponse(ctx, job) // its record is kept, so the id is taken
	if err != nil {
		return err
	}
	seen.Conflict, err = problem(again.ApplicationproblemJSON409, again.StatusCode(), again.Body)
	return err
}

func setBackoffs(ctx context.Context, client *deferd.ClientWithResponses, topic string, seen *report) error {
	backoffs := make([]deferd.Backoff, 3)
	if err := backoffs[0].FromExponentialBackoff(deferd.ExponentialBackoff{
		Kind: deferd.Exponential, Base: pointer(3.0), Cap: pointer(100.5), Jitter: pointer(0.25),
	}); err != nil {
		return err
	}
	if err := backoffs[1].FromFixedBackoff(deferd.FixedBackoff{Kind: deferd.Fixed, Seconds: pointer(1.5)}); err != nil {
		return err
	}
	if err := backoffs[2].FromScheduleBackoff(deferd.ScheduleBackoff{
		Kind: deferd.ScheduleBackoffKindSchedule, Seconds: []float64{0.5, 120}, Then: pointer(deferd.ScheduleBackoffThenRepeatLast),
	}); err != nil {
		return err
	}
	for _, backoff := range backoffs {
		put, err := client.PutJobWithResponse(ctx, deferd.PutJob{Topic: topic, Backoff: &backoff, Delay: pointer(60.0)})
		if err != nil {
			return err
		}
		if put.JSON201 == nil {
			return unexpected(put.StatusCode(), put.Body)
		}
		seen.Backoffs = append(seen.Backoffs, put.JSON201.Backoff)
	}
	return nil
}

func pauseAndResume(ctx context.Context, client *deferd.ClientWithResponses, topic string, seen *report) error {
	paused, err := client.PauseTopicWithResponse(ctx, topic, deferd.PauseTopicJSONRequestBody{})
	if err != nil {
		return err
	}
	resumed, err := client.ResumeTopicWithResponse(ctx, topic, nil)
	if err != nil {
		return err
	}
	if paused.JSON200 == nil || resumed.JSON200 == nil {
		return unexpected(paused.StatusCode(), append(paused.Body, resumed.Body...))
	}
	seen.Paused = []bool{paused.JSON200.Paused, resumed.JSON200.Paused}
	return nil
}

func finishCancelled(ctx context.Context, client *deferd.ClientWithResponses, topic string, seen *report) error {
	put, err := client.PutJobWithResponse(ctx, deferd.PutJob{Topic: topic, Id: pointer("order-2")})
	if err != nil {
		return err
	}
	if put.JSON201 == nil {
		return unexpected(put.StatusCode(), put.Body)
	}
	delivery, err := popOne(ctx, client, topic)
	if err != nil {
		return err
	}
	cancelled, err := client.CancelJobWithResponse(ctx, topic, delivery.Id, nil)
	if err != nil {
		return err
	}
	if cancelled.JSON200 == nil {
		return unexpected(cancelled.StatusCode(), cancelled.Body)
	}
	finished, err := client.FinishJobWithResponse(ctx, topic, delivery.Id, deferd.FinishJob{Receipt: &delivery.Receipt})
	if err != nil {
		return err
	}
	seen.Gone, err = problem(finished.ApplicationproblemJSON410, finished.StatusCode(), finished.Body)
	return err
}

func makeSchedule(ctx context.Context, client *deferd.ClientWithResponses, topic string, seen *report) error {
	nights := deferd.WindowSpec{}
	if err := nights.FromWindowList([]deferd.Window{{From: pointer("22:00"), To: pointer("06:00")}}); err != nil {
		return err
	}
	made, err := client.PutScheduleWithResponse(ctx, topic, nil, deferd.PutSchedule{
		Topic: topic, Every: pointer(3600.0), Window: &nights, Job: &deferd.ScheduledJob{MaxAttempts: pointer(3)},
	})
	if err != nil {
		return err
	}
	if made.JSON201 == nil {
		return unexpected(made.StatusCode(), made.Body)
	}
	windows, err := made.JSON201.Window.AsWindowList()
	if err != nil {
		return err
	}
	seen.Schedule = schedule{made.JSON201.Every, windows[0].From, made.JSON201.Job.MaxAttempts}
	deleted, err := client.DeleteScheduleWithResponse(ctx, topic)
	if err == nil && deleted.JSON200 == nil {
		return unexpected(deleted.StatusCode(), deleted.Body)
	}
	return err
}

// popOne waits for the job that is there or comes soon.
func popOne(ctx context.Context, client *deferd.ClientWithResponses, topic string) (*deferd.Delivery, error) {
	query := &deferd.PopJobsParams{Wait: pointer(20.0), Consumer: pointer("go")}
	response, err := client.PopJobsWithResponse(ctx, topic, query, nil)
	if err != nil {
		return nil, err
	}
	if response.JSON200 == nil || len(response.JSON200.Jobs) != 1 {
		return nil, unexpected(response.StatusCode(), response.Body)
	}
	return &response.JSON200.Jobs[0], nil
}

func problem(shown *deferd.Problem, status int, body []byte) (failure, error) {
	if shown == nil {
		return failure{}, unexpected(status, body)
	}
	return failure{shown.Status, shown.Code}, nil
}

func unexpected(status int, body []byte) error {
	return fmt.Errorf("unexpected response %d: %s", status, body)
}

func pointer[T any](value T) *T {
	return &value
}
