<?php
// A page that takes turns by user: a user with many open tabs does not delay the others.

declare(strict_types=1);

require __DIR__ . '/turn.php';

function report(string $user): string
{
    return "the report of $user\n";
}

$user = $_SERVER['REMOTE_USER'] ?? $_SERVER['REMOTE_ADDR'] ?? 'nobody';
try {
    echo in_turn("report:$user", fn (): string => report($user));
} catch (NoTurn) {
    http_response_code(503);
    header('Retry-After: 10');
    echo "Busy. Please try again in some seconds.\n";
}
