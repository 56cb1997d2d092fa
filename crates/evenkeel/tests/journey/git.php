<?php
// `git http-backend`, a CGI program, behind FastCGI. It takes what it has to know from its
// environment; nginx passes the same as parameters.
$passed = ['PATH_INFO', 'REQUEST_METHOD', 'QUERY_STRING', 'CONTENT_TYPE', 'GIT_PROJECT_ROOT'];
$environment = array_intersect_key($_SERVER, array_flip($passed)) + [
    'PATH' => '/usr/local/bin:/usr/bin:/bin',
    'GIT_HTTP_EXPORT_ALL' => '1',
    'GIT_PROTOCOL' => $_SERVER['HTTP_GIT_PROTOCOL'] ?? '',
    'HTTP_CONTENT_ENCODING' => $_SERVER['HTTP_CONTENT_ENCODING'] ?? '',
    // The repository belongs to the user of the test.
    'GIT_CONFIG_COUNT' => '1',
    'GIT_CONFIG_KEY_0' => 'safe.directory',
    'GIT_CONFIG_VALUE_0' => '*',
];
$git = proc_open(['git', 'http-backend'], [['pipe', 'r'], ['pipe', 'w']], $pipes, null, $environment);
fwrite($pipes[0], file_get_contents('php://input'));
fclose($pipes[0]);
[$head, $body] = explode("\r\n\r\n", stream_get_contents($pipes[1]), 2);
foreach (explode("\r\n", $head) as $line) {
    header($line);
}
echo $body;
