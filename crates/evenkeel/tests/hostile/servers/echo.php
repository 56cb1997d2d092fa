<?php
// Answers with the tokens of the path and of the header; where it reads the body, if all of it
// belongs to them.
$parts = explode('/', $_SERVER['REQUEST_URI']);
$path = array_pop($parts);
$way = array_pop($parts);
$token = $_SERVER['HTTP_X_TOKEN'] ?? 'none';
header("x-token: $token");
if ($way === 'read') {
    $body = file_get_contents('php://input');
    $all = str_repeat("$token,", intdiv(strlen($body), strlen($token)) + 1);
    if (!str_starts_with($all, $body)) {
        http_response_code(599);
    }
}
echo "$path;$token;";
