<?php
// A page that costs what it is asked to. ?ms=N burns N ms of CPU time of its own process, however
// crowded the machine is; ?sleep=N takes N ms and no CPU; ?bytes=N answers that many bytes.
$ask = fn (string $name) => (int) ($_GET[$name] ?? 0);

function cpu_us(): int
{
    $usage = getrusage();
    return ($usage['ru_utime.tv_sec'] + $usage['ru_stime.tv_sec']) * 1000000
        + $usage['ru_utime.tv_usec'] + $usage['ru_stime.tv_usec'];
}

$until = cpu_us() + 1000 * $ask('ms');
for ($x = 1; cpu_us() < $until; ) {
    for ($i = 0; $i < 200; $i++) {
        $x = ($x * 1103515245 + 12345) & 0x7fffffff;
    }
}
usleep(1000 * $ask('sleep'));
if (isset($_GET['stated'])) {
    header('X-Cost: ' . $_GET['stated']);
}
header('Content-Type: text/plain');
echo $ask('bytes') > 0 ? str_repeat('x', $ask('bytes')) : "burnt {$ask('ms')} ms\n";
