package test.deferd;

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import test.deferd.api.ConsumersApi;
import test.deferd.api.JobsApi;
import test.deferd.api.SchedulesApi;
import test.deferd.api.TopicsApi;
import test.deferd.client.ApiClient;
import test.deferd.client.ApiException;
import test.deferd.client.JSON;
import test.deferd.model.Backoff;
import test.deferd.model.Delivery;
import test.deferd.model.ExponentialBackoff;
import test.deferd.model.FinishJob;
import test.deferd.model.FixedBackoff;
import test.deferd.model.Problem;
import test.deferd.model.PutJob;
import test.deferd.model.PutSchedule;
import test.deferd.model.ScheduleBackoff;
import test.deferd.model.ScheduledJob;
import test.deferd.model.Window;
import test.deferd.model.WindowSpec;

/**
 * Puts, pops and finishes jobs with the client that openapi-generator makes from openapi/openapi.yaml.
 *
 * <p>Its arguments are the URL of a service, the URL of a service whose store is down, and a topic. It writes what it
 * saw to standard output; tests/acceptance/api/generated_scenario.py states the expected output.
 */
public final class Program {
    private final JobsApi jobs;
    private final ConsumersApi consumers;
    private final TopicsApi topics;
    private final SchedulesApi schedules;
    private final String topic;

    private Program(String url, String topic) {
        ApiClient client = new ApiClient().setBasePath(url).setReadTimeout(30_000);
        this.jobs = new JobsApi(client);
        this.consumers = new ConsumersApi(client);
        this.topics = new TopicsApi(client);
        this.schedules = new SchedulesApi(client);
        this.topic = topic;
    }

    public static void main(String[] arguments) throws ApiException {
        String url = arguments[0];
        String urlWithoutStore = arguments[1];
        String topic = arguments[2];
        Program program = new Program(url, topic);
        Map<String, Object> seen = program.putPopFinish();
        seen.put("backoffs", program.setBackoffs());
        seen.put("paused", program.pauseAndResume());
        seen.put("gone", program.finishCancelled());
        seen.put("schedule", program.makeSchedule());
        JobsApi withoutStore = new Program(urlWithoutStore, topic).jobs;
        seen.put("unavailable", failed(() -> withoutStore.putJob(new PutJob().topic(topic))));
        System.out.println(JSON.serialize(seen));
        System.exit(0); // the threads of the HTTP client live on for a minute
    }

    private interface Call {
        void run() throws ApiException;
    }

    /** The problem of a call that must fail. */
    private static Map<String, Object> failed(Call call) {
        try {
            call.run();
        } catch (ApiException error) {
            JsonObject body = JsonParser.parseString(error.getResponseBody()).getAsJsonObject();
            body.addProperty("later", true); // later versions may add fields to responses
            Problem problem = JSON.deserialize(body.toString(), Problem.class);
            return Map.of("status", problem.getStatus(), "code", problem.getCode());
        }
        throw new IllegalStateException("the call did not fail");
    }

    private Delivery popOne() throws ApiException {
        List<Delivery> popped = consumers.popJobs(topic, 20.0, null, null, "java", null, null).getJobs();
        if (popped.size() != 1) {
            throw new IllegalStateException("there is not one job: " + popped);
        }
        return popped.get(0);
    }

    private Map<String, Object> putPopFinish() throws ApiException {
        PutJob job = new PutJob().topic(topic).id("order-1").body(Map.of("order", 1)).delay(0.3).ttr(86399.999)
                .retain(60.0);
        Map<String, Object> seen = new LinkedHashMap<>();
        var put = jobs.putJob(job);
        seen.put("put", put.getState());
        seen.put("ttr", put.getTtr());
        Delivery delivery = popOne();
        seen.put("popped", Map.of(
                "id", delivery.getId(), "attempt", delivery.getAttempt(), "body", delivery.getBody()));
        FinishJob done = new FinishJob().receipt(delivery.getReceipt()).result("closed");
        seen.put("finished", consumers.finishJob(topic, delivery.getId(), done).getState());
        seen.put("conflict", failed(() -> jobs.putJob(job))); // its record is kept, so the id is taken
        return seen;
    }

    private List<JsonElement> setBackoffs() throws ApiException {
        List<Backoff> backoffs = List.of(
                new Backoff(new ExponentialBackoff().kind(ExponentialBackoff.KindEnum.EXPONENTIAL).base(3.0).cap(100.5)
                        .jitter(0.25)),
                new Backoff(new FixedBackoff().kind(FixedBackoff.KindEnum.FIXED).seconds(1.5)),
                new Backoff(new ScheduleBackoff().kind(ScheduleBackoff.KindEnum.SCHEDULE).seconds(List.of(0.5, 120.0))
                        .then(ScheduleBackoff.ThenEnum.REPEAT_LAST)));
        List<JsonElement> seen = new ArrayList<>();
        for (Backoff backoff : backoffs) {
            seen.add(json(jobs.putJob(new PutJob().topic(topic).backoff(backoff).delay(60.0)).getBackoff()));
        }
        return seen;
    }

    private List<Boolean> pauseAndResume() throws ApiException {
        return List.of(topics.pauseTopic(topic, null).getPaused(), topics.resumeTopic(topic, null).getPaused());
    }

    private Map<String, Object> finishCancelled() throws ApiException {
        jobs.putJob(new PutJob().topic(topic).id("order-2"));
        Delivery delivery = popOne();
        jobs.cancelJob(topic, delivery.getId(), null, null, null);
        FinishJob done = new FinishJob().receipt(delivery.getReceipt());
        return failed(() -> consumers.finishJob(topic, delivery.getId(), done));
    }

    private Map<String, Object> makeSchedule() throws ApiException {
        WindowSpec nights = new WindowSpec(List.of(new Window().from("22:00").to("06:00")));
        PutSchedule schedule = new PutSchedule().topic(topic).every(3600.0).window(nights)
                .job(new ScheduledJob().maxAttempts(3));
        var made = schedules.putSchedule(topic, schedule, null);
        schedules.deleteSchedule(topic);
        Window opened = made.getWindow().getListWindow().get(0);
        return Map.of(
                "every", made.getEvery(), "opens", opened.getFrom(), "max_attempts", made.getJob().getMaxAttempts());
    }

    private static JsonElement json(Object value) {
        return JsonParser.parseString(JSON.serialize(value));
    }
}
