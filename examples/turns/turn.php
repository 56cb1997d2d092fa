<?php
// Runs code when it is the turn of a tag, in PHP-FPM and on the command line, without an extension.

declare(strict_types=1);

/** There is no turn now: none came in time, or too many programs wait. */
final class NoTurn extends RuntimeException
{
}

/**
 * Waits for a turn of $tag, for $wait seconds at most, and returns what $job returns. If the door
 * does not answer, $job runs without a turn.
 */
function in_turn(string $tag, callable $job, int $wait = 10): mixed
{
    $door = @fsockopen('127.0.0.1', 7070, $code, $why, 0.5);
    $reply = '';
    if ($door !== false) {
        stream_set_timeout($door, $wait + 5);
        fwrite($door, 'TAKE ' . strtr($tag, "\n", ' ') . " wait={$wait}s\n");
        $reply = rtrim((string) fgets($door));
    }
    if ($reply === 'LATE' || $reply === 'BUSY') {
        throw new NoTurn($reply);
    }
    if (!str_starts_with($reply, 'TURN ')) {
        error_log("no turn for $tag: " . ($reply ?: $why ?: 'no answer'));
    }
    try {
        return $job();
    } finally {
        // A closed connection gives its turn back, also if the script is ended.
        if ($door !== false) {
            fclose($door);
        }
    }
}
