<?php
// A worker in PHP 8.1 or newer, with its extension pcntl and no packages; docs/other-languages.md says why each call is
// made as it is. The handler runs in a child process, so that the parent can extend the lease meanwhile. One job at a
// time: start several processes for more. DEFERD_GRACE is how many seconds the handler gets after SIGTERM. Run it with
// DEFERD_URL=http://localhost:8000 DEFERD_TOPIC=mail DEFERD_KEY=... php worker.php
declare(strict_types=1);

/** Throw it in place of an error, to release or bury the job with these fields. */
class Outcome extends Exception
{
    public function __construct(public readonly string $verb, public readonly array $fields)
    {
        parent::__construct($verb);
    }
}
class Cancelled extends Exception {}

/** Your work. Its value is the result of the job; an exception releases the job for another attempt. Cancelled is
 * thrown into it when the work must end: the job was cancelled, or the worker stops. */
function handle(array $job): mixed
{
    ['do' => $what, 'seconds' => $seconds] = $job['body'] + ['seconds' => 0];
    switch ($what) {
        case 'fail':
            throw new RuntimeException('failed as the job says');
        case 'snooze':
            throw new Outcome('release', ['count' => false, 'delay' => $seconds]);
        case 'reject':
            throw new Outcome('bury', ['error' => 'rejected as the job says']);
        case 'sleep':
            try {
                usleep((int) ($seconds * 1e6));
            } catch (Cancelled $cancelled) {
                echo "cancelled {$job['id']}\n";
                throw $cancelled;
            }
    }
    return "done: $what";
}

const TRY_AGAIN = [0, 408, 429, 500, 502, 503, 504];
const OVER = [404, 409, 410]; // the delivery is over: cancelled, or another consumer has the job
define('GRACE', (float) (getenv('DEFERD_GRACE') ?: 30));
$stoppedAt = INF;

/** The status (0: there was no response), the body, and Retry-After. */
function call(string $path, ?array $body): array
{
    $headers = ['Content-Type: application/json', 'Authorization: Bearer ' . getenv('DEFERD_KEY')];
    $http = ['method' => 'POST', 'header' => $headers, 'content' => json_encode($body), 'timeout' => 5];
    $context = stream_context_create(['http' => $http + ['ignore_errors' => true]]);
    $text = @file_get_contents(getenv('DEFERD_URL') . $path, false, $context);
    if ($text === false) {
        return [0, ['detail' => error_get_last()['message'] ?? 'no response'], 0];
    }
    $retryAfter = preg_match('/^retry-after: *(\d+)/mi', implode("\n", $http_response_header), $found) ? $found[1] : 0;
    return [(int) explode(' ', $http_response_header[0])[1], json_decode($text, true), (int) $retryAfter];
}

/** Repeats a call until it has a definite response; a stop ends that after $patience seconds. */
function insist(string $path, ?array $body, float $patience = GRACE + 10): array
{
    global $stoppedAt;
    for ($pause = 0.1; ; $pause = min(2 * $pause, 5)) {
        [$status, $data, $retryAfter] = call($path, $body);
        if (!in_array($status, TRY_AGAIN, true)) {
            return [$status, $data];
        }
        echo "trying again: $status {$data['detail']}\n";
        $until = microtime(true) + max($pause * random_int(50, 100) / 100, $retryAfter);
        while (microtime(true) < $until) {
            if (microtime(true) > $stoppedAt + $patience) {
                return [$status, $data];
            }
            usleep(50_000);
        }
    }
}

function runInChild(array $job, mixed $pipe): never
{
    pcntl_signal(SIGTERM, SIG_IGN); // a supervisor may send it to all processes; the parent decides
    pcntl_signal(SIGUSR1, fn() => throw new Cancelled());
    try {
        $outcome = ['finish', ['result' => handle($job)]];
    } catch (Outcome $thrown) {
        $outcome = [$thrown->verb, $thrown->fields];
    } catch (Cancelled) {
        $outcome = ['release', ['error' => 'the worker stopped', 'delay' => 0]];
    } catch (Throwable $error) {
        $outcome = ['release', ['error' => substr($error->getMessage(), 0, 1000)]];
    }
    fwrite($pipe, json_encode($outcome, JSON_INVALID_UTF8_SUBSTITUTE));
    exit(0);
}

function work(array $job): void
{
    global $stoppedAt;
    echo "began {$job['id']}\n";
    [$path, $receipt] = ["/jobs/{$job['topic']}/{$job['id']}/", ['receipt' => $job['receipt']]];
    [$pipe, $end] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    if (($child = pcntl_fork()) === 0) {
        runInChild($job, $end);
    }
    fclose($end);
    [$touchAt, $killAt, $over, $none] = [microtime(true) + $job['ttr'] / 2, INF, false, null];
    for ($read = [$pipe]; !@stream_select($read, $none, $none, 0, 50_000); $read = [$pipe]) {
        $now = microtime(true);
        if ($now >= $touchAt) {
            [$status, , $retryAfter] = call("{$path}touch", $receipt);
            $touchAt = $now + ($status === 200 ? $job['ttr'] / 2 : max($job['ttr'] / 8, $retryAfter));
            $over = $over || in_array($status, OVER, true);
        }
        if ($killAt === INF && ($over || $now >= $stoppedAt + GRACE)) {
            posix_kill($child, SIGUSR1);
            $killAt = $now + 5;
        } elseif ($now >= $killAt) {
            posix_kill($child, SIGKILL);
        }
    }
    $outcome = json_decode(stream_get_contents($pipe), true);
    pcntl_waitpid($child, $ended);
    if ($over) {
        return; // forget the job
    }
    [$verb, $fields] = $outcome ?? ['release', ['error' => 'the process of the handler died']];
    [$status, $data] = insist($path . $verb, $receipt + $fields);
    if ($verb === 'finish' && $status >= 300 && !in_array($status, OVER, true)) { // such as a result that is too large
        insist("{$path}release", $receipt + ['error' => $data['detail']]);
    }
}

pcntl_async_signals(true);
pcntl_signal(SIGTERM, function () use (&$stoppedAt): void { $stoppedAt = microtime(true); });
while ($stoppedAt === INF) {
    $query = ['wait' => 1, 'consumer' => 'php-' . getmypid(), 'request_id' => bin2hex(random_bytes(8))];
    $path = '/topics/' . getenv('DEFERD_TOPIC') . '/pop?' . http_build_query($query);
    [$status, $data] = insist($path, null, 0); // SIGTERM does not end this call, so it waits for 1 s only
    if ($status !== 200 && $stoppedAt === INF) {
        throw new RuntimeException("pop: $status {$data['detail']}");
    }
    foreach ($data['jobs'] ?? [] as $job) {
        if ($stoppedAt === INF) {
            work($job);
        } else {
            insist("/topics/{$job['topic']}/return", ['jobs' => [['id' => $job['id'], 'receipt' => $job['receipt']]]]);
        }
    }
}
