//! How many bytes a server can send before its connection fails: floods, honest answers, and random
//! bytes.

use super::*;
use evenkeel_fuzz::fuzz;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

const MAX: usize = EXCESS_BYTES_MAX as usize;
const COMMAND: &[u8] = b"*1\r\n$4\r\nTIME\r\n";

/// The account of a connection on which `count` commands were sent.
fn asked(count: usize) -> GrantBalance {
    let mut balance = GrantBalance::default();
    (0..count).for_each(|_| balance.sent(COMMAND));
    balance
}

/// The number of bytes that are accepted of `head` followed by endless repetitions of `more`.
fn taken(balance: &mut GrantBalance, head: &[u8], more: &[u8]) -> usize {
    let mut taken = head.len();
    let mut heard = balance.received(head);
    while heard.is_ok() {
        assert!(taken < 100 * MAX, "{}", head.escape_ascii());
        taken += more.len();
        heard = balance.received(more);
    }
    taken
}

#[test]
fn floods_end() {
    let kilo = [b'a'; 1_024];
    let ints = b":1\r\n".repeat(256);
    let granted = COMMAND.len() + GRANT_BYTES as usize;
    let most = MAX + granted + 1_025;
    for (head, more) in [
        (&b"+"[..], &kilo[..]),
        (b"-ERR ", &kilo),
        (b":", &kilo),
        (b"$", &kilo),
        (b"*", &kilo),
        (b"%1000000000\r\n", &ints),
        (b"anything", &kilo),
        (b"+a\nb", &kilo),
        (b"*1\r\n", b"*1\r\n"),
    ] {
        let taken = taken(&mut asked(1), head, more);
        assert!(taken > MAX && taken <= most, "{}: {taken}", head.escape_ascii());
    }
    // The rest of an array counts from its announcement on.
    assert!(taken(&mut asked(1), b"*300000\r\n", &ints) < MAX);
}

#[test]
fn what_is_announced_counts_before_it_has_come() {
    for head in ["$536870000\r\n", "$9223372036854775807\r\n", "*1000000000\r\n", "*1048576\r\n"] {
        for cut in 1..head.len() {
            let (begin, end) = head.as_bytes().split_at(cut);
            let mut balance = asked(1);
            assert_eq!(balance.received(begin), Ok(()), "{head:?} {cut}");
            assert_eq!(balance.received(end), Err(ExcessBytesError), "{head:?} {cut}");
        }
    }
    let nested = b"*1000\r\n*9223372036854775807\r\n*9223372036854775807\r\n";
    assert_eq!(asked(1).received(nested), Err(ExcessBytesError));
}

#[test]
fn answers_that_nobody_asked_for_end_too() {
    let answers = b"+OK\r\n".repeat(200);
    assert!(taken(&mut asked(0), b"", &answers) <= MAX + 1_000);
    // Further commands in the meantime do not change that.
    let mut balance = asked(0);
    let heard = (0..2_000).take_while(|_| {
        balance.sent(COMMAND);
        balance.received(&answers).is_ok()
    });
    assert!(heard.count() <= MAX / 900);
    // Many long answers do not add up either, while one is still to come.
    let long = [&b"$99990\r\n"[..], &[b'a'; 99_990], b"\r\n"].concat();
    let taken = taken(&mut asked(100), b"", &long);
    assert!(taken <= 100 * (GRANT_BYTES as usize + COMMAND.len()) + MAX + long.len(), "{taken}");
}

/// The longest honest answers, any number of them.
#[test]
fn honest_answers_are_heard_however_many_there_are() {
    let mut call = b"*300\r\n".to_vec();
    (0..300).for_each(|_| call.extend(b"$40\r\nevenkeel:window:3600s:api:user=someone42\r\n"));
    let mut answer = b"*258\r\n".to_vec();
    (0..258).for_each(|_| answer.extend(b":4294967295\r\n"));
    let mut balance = asked(0);
    balance.sent(&call);
    for _ in 0..2_000 {
        balance.sent(&call);
        assert_eq!(balance.received(&answer), Ok(()));
        assert!(balance.granted.len() == 1 && balance.excess == 0);
    }
    // A thousand nodes with five thousand ranges.
    let id = "0123456789".repeat(4);
    let node = format!("*4\r\n$13\r\n10.123.45.167\r\n:6379\r\n$40\r\n{id}\r\n*0\r\n");
    let range = format!("*4\r\n:10000\r\n:10001\r\n{node}{node}");
    let slots = format!("*5000\r\n{}", range.repeat(5_000));
    let mut balance = asked(0);
    for _ in 0..20 {
        balance.sent(b"*2\r\n$7\r\nCLUSTER\r\n$5\r\nSLOTS\r\n");
        slots
            .as_bytes()
            .chunks(8_192)
            .for_each(|piece| assert_eq!(balance.received(piece), Ok(())));
        assert!(balance.granted.is_empty());
    }
}

#[test]
fn ends_are_found_wherever_pieces_are_cut() {
    let values = [
        "+OK\r\n",
        "-ERR a\rb\nc\r\n",
        "*0\r\n",
        "*-1\r\n",
        "$-1\r\n",
        "$0\r\n\r\n",
        "$4\r\n\r\n\r\n\r\n",
        "*3\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n+b\r\n",
        ":-5\r\n",
    ];
    let all: String = values.concat();
    let lengths: Vec<u64> = values.iter().map(|value| value.len() as u64).collect();
    for size in 1..=all.len() {
        let (mut ends, mut seen) = (ValueEnds::default(), Vec::new());
        all.as_bytes().chunks(size).for_each(|piece| ends.pass(piece, |size| seen.push(size)));
        assert_eq!(seen, lengths, "{size}");
        assert_eq!(ends.least(), 0);
    }
}

/// A value that ends here also ends for the reader, which therefore buffers no more bytes than are
/// counted here.
#[test]
fn fuzz_ends_are_those_that_the_reader_sees() {
    const PIECES: [&[u8]; 16] = [
        b"+", b"-", b":", b"$", b"*", b"1", b"2", b"0", b"-1", b"\r\n", b"\r\n", b"\r", b"\n",
        b"a", b" ", b"%",
    ];
    fuzz().for_each(|bytes: &[u8]| {
        let text: Vec<u8> =
            bytes.iter().flat_map(|byte| PIECES[usize::from(byte % 16)]).copied().collect();
        let (mut ends, mut sizes) = (ValueEnds::default(), Vec::new());
        text.chunks(1 + bytes.len() % 5)
            .for_each(|piece| ends.pass(piece, |size| sizes.push(size)));
        let mut rest = text.as_slice();
        for size in sizes {
            let (value, after) = rest.split_at(size as usize);
            rest = after;
            let cut = redis::parse_redis_value(&value[..value.len() - 1]);
            assert!(cut.is_err(), "{}", value.escape_ascii());
            // Otherwise the reader reports an error, and the connection is closed.
            if let Err(why) = redis::parse_redis_value(value) {
                assert_eq!(why.kind(), redis::ErrorKind::Parse, "{}", value.escape_ascii());
                return;
            }
        }
    });
}

#[tokio::test]
async fn the_connection_gives_no_more() {
    let (ours, mut theirs) = duplex(64 * 1_024);
    let (mut bounded, exceeded) = BoundedStream::new(ours);
    bounded.write_all(COMMAND).await.expect("sent");
    let flood = tokio::spawn(async move {
        let mut sent = theirs.write(b"+").await.expect("sent");
        while let Ok(count) = theirs.write(&[b'a'; 1_000]).await {
            sent += count;
        }
        sent
    });
    let mut read = Vec::new();
    let fault = bounded.read_to_end(&mut read).await.expect_err("it ends");
    assert_eq!(fault.to_string(), ExcessBytesError.to_string());
    assert!(exceeded.load(Relaxed) && read.len() <= MAX + 2 * GRANT_BYTES as usize);
    assert!(bounded.read_u8().await.is_err());
    drop(bounded);
    let sent = flood.await.expect("it ends");
    assert!(sent <= MAX + 200 * 1_024, "{sent}");
}
