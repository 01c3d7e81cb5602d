//! Puts, pops and finishes jobs with the client that openapi-generator makes from openapi/openapi.yaml.
//!
//! Its arguments are the URL of a service, the URL of a service whose store is down, and a topic. It writes what it saw
//! to standard output; tests/acceptance/api/generated_scenario.py states the expected output.

use deferd::apis::configuration::Configuration;
use deferd::apis::{Error, consumers_api, jobs_api, schedules_api, topics_api};
use deferd::models::{
    self, Backoff, Delivery, ExponentialBackoff, FinishJob, FixedBackoff, Problem, PutJob, PutSchedule, ScheduleBackoff,
    ScheduledJob, WindowSpec,
};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, url_without_store, topic] = &arguments[..] else {
        return Err("arguments: URL URL_WITHOUT_STORE TOPIC".into());
    };
    let service = service(url);
    let mut seen = put_pop_finish(&service, topic)?;
    let more = json!({
        "backoffs": set_backoffs(&service, topic)?,
        "paused": [
            topics_api::pause_topic(&service, topic, None)?.paused,
            topics_api::resume_topic(&service, topic, None)?.paused,
        ],
        "gone": finish_cancelled(&service, topic)?,
        "schedule": make_schedule(&service, topic)?,
        "unavailable": failed(jobs_api::put_job(&self::service(url_without_store), PutJob::new(topic.clone())))?,
    });
    seen.as_object_mut().ok_or("no object")?.extend(more.as_object().cloned().unwrap_or_default());
    println!("{seen}");
    Ok(())
}

fn service(url: &str) -> Configuration {
    Configuration { base_path: url.to_owned(), ..Configuration::new() }
}

/// The problem of a call that must fail.
fn failed<T, E>(result: Result<T, Error<E>>) -> Result<Value, Failure> {
    let Err(Error::ResponseError(response)) = result else {
        return Err("the call did not fail with a response".into());
    };
    let problem: Problem = serde_json::from_str(&response.content)?;
    Ok(json!({"status": problem.status, "code": problem.code}))
}

fn pop_one(service: &Configuration, topic: &str) -> Result<Delivery, Failure> {
    let popped = consumers_api::pop_jobs(service, topic, Some(20.0), None, None, Some("rust"), None, None)?;
    let [delivery] = &popped.jobs[..] else {
        return Err("there is not one job".into());
    };
    Ok(delivery.clone())
}

fn put_pop_finish(service: &Configuration, topic: &str) -> Result<Value, Failure> {
    let job = PutJob {
        id: Some("order-1".to_owned()),
        body: Some(Some(json!({"order": 1}))),
        delay: Some(0.3),
        ttr: Some(86399.999),
        retain: Some(60.0),
        ..PutJob::new(topic.to_owned())
    };
    let put = jobs_api::put_job(service, job.clone())?;
    let delivery = pop_one(service, topic)?;
    let done = FinishJob {
        receipt: Some(delivery.receipt),
        result: Some(Some(json!("closed"))),
        ..FinishJob::new()
    };
    let finished = consumers_api::finish_job(service, topic, &delivery.id, Some(done))?;
    Ok(json!({
        "put": put.state,
        "ttr": put.ttr,
        "popped": {"id": delivery.id, "attempt": delivery.attempt, "body": delivery.body},
        "finished": finished.state,
        "conflict": failed(jobs_api::put_job(service, job))?, // its record is kept, so the id is taken
    }))
}

fn set_backoffs(service: &Configuration, topic: &str) -> Result<Vec<Backoff>, Failure> {
    let exponential = ExponentialBackoff {
        base: Some(3.0),
        cap: Some(100.5),
        jitter: Some(0.25),
        ..ExponentialBackoff::new(models::exponential_backoff::Kind::Exponential)
    };
    let fixed = FixedBackoff { seconds: Some(1.5), ..FixedBackoff::new(models::fixed_backoff::Kind::Fixed) };
    let schedule = ScheduleBackoff {
        then: Some(models::schedule_backoff::Then::RepeatLast),
        ..ScheduleBackoff::new(models::schedule_backoff::Kind::Schedule, vec![0.5, 120.0])
    };
    [Backoff::ExponentialBackoff(exponential), Backoff::FixedBackoff(fixed), Backoff::ScheduleBackoff(schedule)]
        .into_iter()
        .map(|backoff| {
            let job = PutJob { backoff: Some(backoff), delay: Some(60.0), ..PutJob::new(topic.to_owned()) };
            Ok(jobs_api::put_job(service, job)?.backoff)
        })
        .collect()
}

fn finish_cancelled(service: &Configuration, topic: &str) -> Result<Value, Failure> {
    jobs_api::put_job(service, PutJob { id: Some("order-2".to_owned()), ..PutJob::new(topic.to_owned()) })?;
    let delivery = pop_one(service, topic)?;
    jobs_api::cancel_job(service, topic, &delivery.id, None, None, None)?;
    let done = FinishJob { receipt: Some(delivery.receipt), ..FinishJob::new() };
    failed(consumers_api::finish_job(service, topic, &delivery.id, Some(done)))
}

fn make_schedule(service: &Configuration, topic: &str) -> Result<Value, Failure> {
    let schedule = PutSchedule {
        every: Some(3600.0),
        window: Some(WindowSpec::WindowList(vec![models::Window {
            from: Some("22:00".to_owned()),
            to: Some("06:00".to_owned()),
            ..models::Window::new()
        }])),
        job: Some(ScheduledJob { max_attempts: Some(Some(3)), ..ScheduledJob::new() }),
        ..PutSchedule::new(topic.to_owned())
    };
    let made = schedules_api::put_schedule(service, topic, schedule, None)?;
    schedules_api::delete_schedule(service, topic)?;
    let Some(WindowSpec::WindowList(windows)) = made.window else {
        return Err("the schedule has no list of windows".into());
    };
    let max_attempts = made.job.and_then(|job| job.max_attempts);
    Ok(json!({"every": made.every, "opens": windows[0].from, "max_attempts": max_attempts}))
}
