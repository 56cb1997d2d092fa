use super::*;

/// What a session makes of bytes that come in pieces of `piece`, as text; `Err` ends it.
fn heard(role: Role, bytes: &[u8], piece: usize) -> (Vec<String>, Result<(), Fault>) {
    let mut session = Session::new(role, 1_000);
    let mut events = Vec::new();
    let (mut start, mut end) = (0, 0);
    while end < bytes.len() {
        end = bytes.len().min(end + piece);
        loop {
            match session.next(&bytes[start..end]) {
                Ok(Some((taken, event))) => {
                    if event != Event::Nothing {
                        events.push(told(&event));
                    }
                    assert!(taken <= end - start);
                    start += taken;
                }
                Ok(None) => break,
                Err(fault) => return (events, Err(fault)),
            }
        }
    }
    (events, Ok(()))
}

fn told(event: &Event<'_>) -> String {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    match event {
        Event::Message(message) => {
            let parts = (0..message.count()).map(|index| text(message.part(index)));
            parts.collect::<Vec<_>>().join("|")
        }
        Event::Subscribe(topic) => format!("+{}", text(topic)),
        Event::Cancel(topic) => format!("-{}", text(topic)),
        Event::Ping(context) => format!("ping {}", text(context)),
        other => format!("{other:?}"),
    }
}

/// The bytes with which a peer of this kind begins.
fn met(role: Role) -> Vec<u8> {
    let mut bytes = greeting().to_vec();
    ready(role, &mut bytes);
    bytes
}

fn all(role: Role, bytes: &[u8]) -> Vec<String> {
    let whole = heard(role, bytes, bytes.len());
    for piece in [1, 2, 7, 64] {
        assert_eq!(heard(role, bytes, piece), whole, "in pieces of {piece}");
    }
    whole.1.expect("no fault");
    whole.0
}

fn fault(role: Role, bytes: &[u8]) -> Fault {
    let whole = heard(role, bytes, bytes.len()).1;
    assert_eq!(heard(role, bytes, 1).1, whole);
    whole.expect_err("a fault")
}

#[test]
fn messages_of_a_publisher_arrive_part_by_part() {
    let mut bytes = met(Role::Publisher);
    message(&[b"d\0", b"ACCEPTED", b"", b"1795206188293", b"", &[b'x'; 300]], &mut bytes);
    message(&[b""], &mut bytes);
    let long = "x".repeat(300);
    let expected = ["Greeted", "Ready", &format!("d\\x00|ACCEPTED||1795206188293||{long}"), ""];
    assert_eq!(all(Role::Subscriber, &bytes), expected);
}

#[test]
fn subscriptions_come_as_messages_or_as_commands() {
    let mut bytes = met(Role::Subscriber);
    subscription(b"d\0", &mut bytes);
    message(&[b"\0d\0"], &mut bytes);
    frame::command(b"SUBSCRIBE", b"e", &mut bytes);
    frame::command(b"CANCEL", b"e", &mut bytes);
    frame::command(b"PING", b"\0\x10abc", &mut bytes);
    frame::command(b"NEWER", b"whatever", &mut bytes);
    message(&[b"\x01a", b"no subscription has two parts"], &mut bytes);
    message(&[b"neither"], &mut bytes);
    let expected = ["Greeted", "Ready", "+d\\x00", "-d\\x00", "+e", "-e", "ping abc"];
    assert_eq!(all(Role::Publisher, &bytes), expected);
    let mut pong = Vec::new();
    Session::pong(b"abc", &mut pong);
    assert_eq!(pong, b"\x04\x08\x04PONGabc");
}

#[test]
fn what_is_too_large_is_passed_over_and_the_next_message_is_found() {
    let mut bytes = met(Role::Publisher);
    message(&[b"a", &[0; 2_000], b"c"], &mut bytes);
    message(&[&b"x"[..]; PARTS_MAX + 1], &mut bytes);
    message(&[&b"y"[..]; PARTS_MAX], &mut bytes);
    message(&[&[0; 400], &[0; 400], &[0; 400]], &mut bytes);
    message(&[b"z"], &mut bytes);
    let full = ["y"; PARTS_MAX].join("|");
    let expected = ["Greeted", "Ready", "TooLarge", "TooLarge", &full, "TooLarge", "z"];
    assert_eq!(all(Role::Subscriber, &bytes), expected);
}

#[test]
fn strangers_are_told_from_peers_as_early_as_can_be() {
    let with = |at: usize, byte: u8| {
        let mut bytes = met(Role::Publisher);
        bytes[at] = byte;
        bytes
    };
    let role = Role::Subscriber;
    assert_eq!(fault(role, b"GET / HTTP/1.1\r\n"), Fault::Signature);
    assert_eq!(fault(role, &with(9, 0)), Fault::Signature);
    // The signature of ZMTP 1 and 2 looks the same up to the version.
    assert_eq!(fault(role, &with(10, 1)[..11]), Fault::Version(1));
    assert_eq!(fault(role, &with(12, b'C')[..32]), Fault::Mechanism);
    assert_eq!(fault(role, &met(Role::Subscriber)), Fault::SocketType);
    assert_eq!(fault(Role::Publisher, &met(Role::Publisher)), Fault::SocketType);
    let mut newer = with(11, 1);
    newer[10] = 4;
    assert_eq!(all(role, &newer), ["Greeted", "Ready"], "later versions speak ours to us");
}

#[test]
fn nonsense_ends_the_connection() {
    let role = Role::Subscriber;
    let after = |bytes: &[u8]| fault(role, &[&met(Role::Publisher)[..], bytes].concat());
    assert_eq!(after(&[0x08, 0]), Fault::Flags(8));
    assert_eq!(after(&[0x05, 0]), Fault::Flags(5), "a command is alone");
    assert_eq!(
        after(b"\x02\x00\x03\x8d\x7e\xa4\xc6\x80\x00"),
        Fault::Length(1_000_000_000_000_000)
    );
    assert_eq!(after(&[0x01, 1, b'a', 0x04, 5, 4, b'P', b'I', b'N', b'G']), Fault::Command);
    assert_eq!(after(&[0x04, 1, 9]), Fault::Command, "its name is longer than it");
    assert_eq!(after(&[0x04, 0]), Fault::Command);
    assert_eq!(after(b"\x04\x08\x05ERROR\x01x"), Fault::Refused);
    let greeted = |bytes: &[u8]| fault(role, &[&greeting()[..], bytes].concat());
    assert_eq!(greeted(&[0, 1, b'x']), Fault::Handshake, "a message before the handshake");
    assert_eq!(greeted(&[4, 6, 5, b'R', b'E', b'A', b'D', b'Y']), Fault::SocketType);
    assert_eq!(greeted(&[4, 7, 5, b'R', b'E', b'A', b'D', b'Y', 9]), Fault::Handshake);
}

#[test]
fn fuzz_any_bytes_are_read_alike_in_one_piece_and_in_many() {
    bolero::check!().with_type::<(bool, Vec<u8>)>().for_each(|(publisher, bytes)| {
        let (ours, theirs) = match publisher {
            true => (Role::Publisher, Role::Subscriber),
            false => (Role::Subscriber, Role::Publisher),
        };
        let bytes = [&met(theirs)[..], bytes].concat();
        assert_eq!(heard(ours, &bytes, 1), heard(ours, &bytes, bytes.len()));
    });
}

#[test]
fn fuzz_any_message_is_read_back() {
    bolero::check!().with_type::<Vec<Vec<u8>>>().for_each(|parts| {
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let size = parts.iter().map(|part| part.len() + 9).sum::<usize>();
        if (1..=PARTS_MAX).contains(&parts.len()) && size < 1_000 {
            let mut bytes = met(Role::Publisher);
            message(&parts, &mut bytes);
            let expected: Vec<_> =
                parts.iter().map(|part| part.escape_ascii().to_string()).collect();
            assert_eq!(heard(Role::Subscriber, &bytes, 3).0[2..], [expected.join("|")]);
        }
    });
}
