//! The commands and the replies of the client of turns, before a door that a test plays. Turns of
//! the real program: `evenkeel/tests/line/turn_clients.rs`.

use super::*;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpListener;

const TIMEOUTS: TurnTimeouts =
    TurnTimeouts { connect: Duration::from_secs(60), answer: Duration::from_secs(60) };

/// A door that a test plays, and a client of it.
async fn door(timeouts: TurnTimeouts) -> (TcpListener, TurnClient) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
    let address = format!("tcp://{}", listener.local_addr().expect("an address"));
    (listener, TurnClient::new(address.parse().expect("an address"), timeouts))
}

/// Accepts a connection, and answers each command with the next of these replies. Returns the
/// commands, and the connection.
async fn play(listener: &TcpListener, replies: &[&str]) -> (Vec<String>, BufReader<TcpStream>) {
    let (stream, _) = listener.accept().await.expect("a connection");
    let mut stream = BufReader::new(stream);
    let mut commands = Vec::new();
    for reply in replies {
        let mut command = String::new();
        stream.read_line(&mut command).await.expect("a command");
        commands.push(command);
        stream.write_all(reply.as_bytes()).await.expect("sent");
    }
    (commands, stream)
}

#[tokio::test]
async fn turns_one_after_another_use_one_connection() {
    let (listener, client) = door(TIMEOUTS).await;
    let replies = ["TURN 7\n", "OK\n", "LATE\n", "BUSY\n", "ERR why\n", "OK\n", "TURN 8\n", "NO\n"];
    let takes = async {
        let options = TurnOptions { cost: Some(Duration::from_millis(2)), wait: None };
        let turn = client.take(b"a tag", &options).await.expect("a turn");
        assert_eq!(turn.id(), Some(7));
        turn.done(Some(Duration::from_micros(3))).await;
        let options = TurnOptions { cost: None, wait: Some(Duration::MAX) };
        let refusals = [
            client.take(b"b", &options).await,
            client.try_take(b"b", Some(Duration::ZERO)).await,
            client.try_take(b"b", None).await,
            client.try_take(b"b", None).await,
            client.try_take(b"b\nc", None).await,
            client.try_take(&[b'b'; TAG_BYTES_MAX + 1], None).await,
        ];
        let refusals = refusals.map(|taken| taken.expect_err("no turn"));
        let refused = TurnError::Refused("why".to_owned());
        let (late, busy) = (TurnError::Late, TurnError::Busy);
        let none = TurnError::NoTurns;
        assert_eq!(refusals, [late, busy, refused, none, TurnError::Tag, TurnError::Tag]);
        let turn = client.try_take(b"c", None).await.expect("a turn");
        turn.done(None).await;
    };
    let ((), (commands, _)) = tokio::join!(takes, play(&listener, &replies));
    let expected = [
        "TAKE a tag cost=2000000ns\n",
        "DONE 7 cost=3000ns\n",
        "TAKE b wait=31536000000000000ns\n",
        "TRY b cost=0ns\n",
        "TRY b\n",
        "TRY b\n",
        "TRY c\n",
        "DONE 8\n",
    ];
    assert_eq!(commands, expected);
}

#[tokio::test]
async fn a_turn_that_is_dropped_closes_its_connection() {
    let (listener, client) = door(TIMEOUTS).await;
    let options = TurnOptions::default();
    let (turn, (_, mut stream)) =
        tokio::join!(client.take(b"a", &options), play(&listener, &["TURN 1\n"]));
    drop(turn);
    assert_eq!(stream.read(&mut [0]).await.expect("an end"), 0);
    // So does a wait that is given up.
    let mut waits = tokio::select! {
        taken = client.take(b"a", &options) => panic!("no reply: {taken:?}"),
        stream = async {
            let (_, mut stream) = play(&listener, &[]).await;
            stream.read_line(&mut String::new()).await.expect("a command");
            stream
        } => stream,
    };
    assert_eq!(waits.read(&mut [0]).await.expect("an end"), 0);
}

#[tokio::test]
async fn a_connection_that_the_door_has_closed_is_replaced() {
    let (listener, client) = door(TIMEOUTS).await;
    for id in [1, 2] {
        let replies = [format!("TURN {id}\n"), "OK\n".to_owned()];
        let takes = async {
            let turn = client.take(b"a", &TurnOptions::default()).await.expect("a turn");
            assert_eq!(turn.id(), Some(id));
            turn.done(None).await;
        };
        // The connection of the first round is closed when `play` has ended.
        let replies = replies.each_ref().map(String::as_str);
        tokio::join!(takes, play(&listener, &replies));
    }
}

#[tokio::test]
async fn without_an_answer_there_is_a_turn_without_an_id() {
    let hurried = TurnTimeouts { answer: Duration::from_millis(1), ..TIMEOUTS };
    let (listener, client) = door(hurried).await;
    let wait = TurnOptions { wait: Some(Duration::ZERO), cost: None };
    // The connection is not accepted.
    let turn = client.take(b"a", &wait).await.expect("a turn");
    assert_eq!(turn.id(), None);
    turn.done(None).await;
    let (_stream, _) = listener.accept().await.expect("a connection");
    for reply in ["", "TURN\n", "TURN x\n", "LATE 1\n", "HTTP/1.1 400 Bad Request\r\n", "TURN 1"] {
        let (listener, client) = door(TIMEOUTS).await;
        let play = async {
            play(&listener, &[reply]).await;
        };
        let (turn, ()) = tokio::join!(client.try_take(b"a", None), play);
        assert_eq!(turn.expect("a turn").id(), None, "{reply}");
    }
    drop(listener);
    let turn = client.take(b"a", &TurnOptions::default()).await.expect("a turn");
    assert_eq!(turn.id(), None);
}

#[test]
fn fuzz_a_reply_is_read_whole_and_no_other_bytes_are_a_turn() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    evenkeel_fuzz::fuzz().with_type::<Vec<(u8, Vec<u8>)>>().for_each(|parts| {
        // Make replies frequent.
        let words: [&[u8]; 8] =
            [b"TURN ", b"LATE", b"BUSY", b"ERR ", b"OK", b"9223372036854775807", b"\n", b" "];
        let bytes = parts.iter().flat_map(|(word, other)| match words.get(usize::from(word % 9)) {
            Some(word) => word.to_vec(),
            None => other.clone(),
        });
        let bytes: Vec<u8> = bytes.collect();
        let mut stream = tokio::io::join(bytes.as_slice(), tokio::io::sink());
        let read = runtime.block_on(exchange(&mut stream, b"TRY a\n"));
        let Ok(reply) = read else { return };
        assert!(!reply.contains(&b'\n') && bytes.starts_with(&reply));
        assert_eq!(bytes[reply.len()], b'\n');
        if let Some(Ok(id)) = read_turn(&reply) {
            let digits = reply.strip_prefix(b"TURN ").expect("a turn");
            let digits = std::str::from_utf8(digits).expect("digits");
            assert_eq!(digits.trim_start_matches(['+', '0']).parse().unwrap_or(0), id);
        }
        if let Some(Err(refusal)) = read_turn(&reply) {
            assert_eq!(refusal == TurnError::Late, reply.trim_ascii_end() == b"LATE");
        }
    });
}
