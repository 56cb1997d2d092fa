use super::*;

/// The events of a session, as text, if bytes come in pieces of `piece`. `Err` ends it.
fn heard(role: SocketRole, bytes: &[u8], piece: usize) -> (Vec<String>, Result<(), ZmtpError>) {
    let mut session = ZmtpSession::new(role, 1_000);
    let mut events = Vec::new();
    let (mut start, mut end) = (0, 0);
    while end < bytes.len() {
        end = bytes.len().min(end + piece);
        loop {
            match session.next(&bytes[start..end]) {
                Ok(Some((taken, event))) => {
                    if !matches!(event, ZmtpEvent::Nothing | ZmtpEvent::Answer(_)) {
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

fn told(event: &ZmtpEvent<'_>) -> String {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    match event {
        ZmtpEvent::Message(message) => {
            let parts = (0..message.count()).map(|index| text(message.part(index)));
            parts.collect::<Vec<_>>().join("|")
        }
        ZmtpEvent::Subscribe(topic) => format!("+{}", text(topic)),
        ZmtpEvent::Cancel(topic) => format!("-{}", text(topic)),
        ZmtpEvent::Ping(context) => format!("ping {}", text(context)),
        other => format!("{other:?}"),
    }
}

/// The first bytes of a peer of this kind and version, as libzmq 2.2, 3.2 and 4.3 send them.
fn begins(role: SocketRole, version: ZmtpVersion) -> Vec<u8> {
    let publishes = role == SocketRole::Publisher;
    let mut bytes = match version {
        ZmtpVersion::One => return vec![1, 0],
        ZmtpVersion::Two => b"\xff\0\0\0\0\0\0\0\x01\x7f\x01".to_vec(),
        ZmtpVersion::Three => b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL".to_vec(),
    };
    if version == ZmtpVersion::Two {
        bytes.extend([if publishes { 1 } else { 2 }, 0, 0]);
        return bytes;
    }
    bytes.resize(64, 0);
    bytes.extend(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03");
    bytes.extend(if publishes { b"PUB" } else { b"SUB" });
    bytes
}

fn met(role: SocketRole) -> Vec<u8> {
    begins(role, ZmtpVersion::Three)
}

/// The bytes that this end sends until the handshake with such a peer is complete.
fn answers(role: SocketRole, bytes: &[u8]) -> (Vec<u8>, ZmtpVersion) {
    let mut session = ZmtpSession::new(role, 1_000);
    let (mut out, mut at) = (SIGNATURE.to_vec(), 0);
    loop {
        let next = session.next(&bytes[at..]).expect("no fault").expect("a whole handshake");
        at += next.0;
        match next.1 {
            ZmtpEvent::Answer(answer) => out.extend(answer),
            ZmtpEvent::Ready => return (out, session.version()),
            other => panic!("{other:?}"),
        }
    }
}

fn all(role: SocketRole, bytes: &[u8]) -> Vec<String> {
    let whole = heard(role, bytes, bytes.len());
    for piece in [1, 2, 7, 64] {
        assert_eq!(heard(role, bytes, piece), whole, "in pieces of {piece}");
    }
    whole.1.expect("no fault");
    whole.0
}

fn fault(role: SocketRole, bytes: &[u8]) -> ZmtpError {
    let whole = heard(role, bytes, bytes.len()).1;
    assert_eq!(heard(role, bytes, 1).1, whole);
    whole.expect_err("a fault")
}

#[test]
fn messages_of_a_publisher_arrive_part_by_part() {
    let mut bytes = met(SocketRole::Publisher);
    message(
        ZmtpVersion::Three,
        &[b"d\0", b"ACCEPTED", b"", b"1795206188293", b"", &[b'x'; 300]],
        &mut bytes,
    );
    message(ZmtpVersion::Three, &[b""], &mut bytes);
    let long = "x".repeat(300);
    let expected = ["Ready", &format!("d\\x00|ACCEPTED||1795206188293||{long}"), ""];
    assert_eq!(all(SocketRole::Subscriber, &bytes), expected);
}

#[test]
fn subscriptions_come_as_messages_or_as_commands() {
    let mut bytes = met(SocketRole::Subscriber);
    subscription(ZmtpVersion::Three, b"d\0", &mut bytes);
    message(ZmtpVersion::Three, &[b"\0d\0"], &mut bytes);
    frame::command(b"SUBSCRIBE", b"e", &mut bytes);
    frame::command(b"CANCEL", b"e", &mut bytes);
    frame::command(b"PING", b"\0\x10abc", &mut bytes);
    frame::command(b"NEWER", b"whatever", &mut bytes);
    message(ZmtpVersion::Three, &[b"\x01a", b"no subscription has two parts"], &mut bytes);
    message(ZmtpVersion::Three, &[b"neither"], &mut bytes);
    let expected = ["Ready", "+d\\x00", "-d\\x00", "+e", "-e", "ping abc"];
    assert_eq!(all(SocketRole::Publisher, &bytes), expected);
    let mut pong = Vec::new();
    ZmtpSession::pong(b"abc", &mut pong);
    assert_eq!(pong, b"\x04\x08\x04PONGabc");
}

#[test]
fn what_is_too_large_is_passed_over_and_the_next_message_is_found() {
    let mut bytes = met(SocketRole::Publisher);
    message(ZmtpVersion::Three, &[b"a", &[0; 2_000], b"c"], &mut bytes);
    message(ZmtpVersion::Three, &[&b"x"[..]; PARTS_MAX + 1], &mut bytes);
    message(ZmtpVersion::Three, &[&b"y"[..]; PARTS_MAX], &mut bytes);
    message(ZmtpVersion::Three, &[&[0; 400], &[0; 400], &[0; 400]], &mut bytes);
    message(ZmtpVersion::Three, &[b"z"], &mut bytes);
    let full = ["y"; PARTS_MAX].join("|");
    let expected = ["Ready", "TooLarge", "TooLarge", &full, "TooLarge", "z"];
    assert_eq!(all(SocketRole::Subscriber, &bytes), expected);
}

#[test]
fn strangers_are_told_from_peers_as_early_as_can_be() {
    let with = |at: usize, byte: u8| {
        let mut bytes = met(SocketRole::Publisher);
        bytes[at] = byte;
        bytes
    };
    let role = SocketRole::Subscriber;
    assert_eq!(fault(role, b"GET / HTTP/1.1\r\n"), ZmtpError::Signature);
    assert_eq!(fault(role, &with(9, 0x7e)), ZmtpError::Signature);
    assert_eq!(fault(role, &with(10, 0)[..11]), ZmtpError::Version(0));
    // Bytes that resemble the identity of a peer of 1.0 but are not one.
    for stranger in [&b"\x16\x03\x01"[..], &[0, 0], &[1, 1], &[9, 2], b"\xff\0\0\0\0\0\0\x02\0\0"] {
        assert_eq!(fault(role, stranger), ZmtpError::Signature, "{}", stranger.escape_ascii());
    }
    assert_eq!(fault(role, &with(12, b'C')[..32]), ZmtpError::Mechanism);
    assert_eq!(fault(role, &met(SocketRole::Subscriber)), ZmtpError::SocketType);
    assert_eq!(fault(SocketRole::Publisher, &met(SocketRole::Publisher)), ZmtpError::SocketType);
    let mut newer = with(11, 1);
    newer[10] = 4;
    assert_eq!(all(role, &newer), ["Ready"], "later versions speak ours to us");
}

#[test]
fn nonsense_ends_the_connection() {
    let role = SocketRole::Subscriber;
    let after = |bytes: &[u8]| fault(role, &[&met(SocketRole::Publisher)[..], bytes].concat());
    assert_eq!(after(&[0x08, 0]), ZmtpError::Flags(8));
    assert_eq!(after(&[0x05, 0]), ZmtpError::Flags(5), "a command is alone");
    assert_eq!(
        after(b"\x02\x00\x03\x8d\x7e\xa4\xc6\x80\x00"),
        ZmtpError::Length(1_000_000_000_000_000)
    );
    assert_eq!(after(&[0x01, 1, b'a', 0x04, 5, 4, b'P', b'I', b'N', b'G']), ZmtpError::Command);
    assert_eq!(after(&[0x04, 1, 9]), ZmtpError::Command, "its name is longer than it");
    assert_eq!(after(&[0x04, 0]), ZmtpError::Command);
    assert_eq!(after(b"\x04\x08\x05ERROR\x01x"), ZmtpError::Refused);
    let greeted = |bytes: &[u8]| fault(role, &[&met(role)[..64], bytes].concat());
    assert_eq!(greeted(&[0, 1, b'x']), ZmtpError::Handshake, "a message before the handshake");
    assert_eq!(greeted(&[4, 6, 5, b'R', b'E', b'A', b'D', b'Y']), ZmtpError::SocketType);
    assert_eq!(greeted(&[4, 7, 5, b'R', b'E', b'A', b'D', b'Y', 9]), ZmtpError::Handshake);
}

#[test]
fn fuzz_any_bytes_are_read_alike_in_one_piece_and_in_many() {
    evenkeel_fuzz::fuzz().with_type::<(bool, Vec<u8>)>().for_each(|(publisher, bytes)| {
        let (ours, theirs) = match publisher {
            true => (SocketRole::Publisher, SocketRole::Subscriber),
            false => (SocketRole::Subscriber, SocketRole::Publisher),
        };
        for version in [ZmtpVersion::One, ZmtpVersion::Two, ZmtpVersion::Three] {
            let bytes = [&begins(theirs, version)[..], bytes].concat();
            assert_eq!(heard(ours, &bytes, 1), heard(ours, &bytes, bytes.len()));
        }
        assert_eq!(heard(ours, bytes, 1), heard(ours, bytes, bytes.len()));
    });
}

#[test]
fn fuzz_any_message_is_read_back() {
    evenkeel_fuzz::fuzz().with_type::<Vec<Vec<u8>>>().for_each(|parts| {
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let size = parts.iter().map(|part| part.len() + 9).sum::<usize>();
        if (1..=PARTS_MAX).contains(&parts.len()) && size < 1_000 {
            let expected: Vec<_> =
                parts.iter().map(|part| part.escape_ascii().to_string()).collect();
            for version in [ZmtpVersion::One, ZmtpVersion::Two, ZmtpVersion::Three] {
                let mut bytes = begins(SocketRole::Publisher, version);
                message(version, &parts, &mut bytes);
                assert_eq!(heard(SocketRole::Subscriber, &bytes, 3).0[1..], [expected.join("|")]);
            }
        }
    });
}

#[test]
fn a_peer_of_any_version_is_answered_in_its_own() {
    let (publisher, subscriber) = (SocketRole::Publisher, SocketRole::Subscriber);
    let signature = b"\xff\0\0\0\0\0\0\0\x01\x7f";
    for (ours, theirs, kind) in [(publisher, subscriber, 1), (subscriber, publisher, 2)] {
        let answer = |version| answers(ours, &begins(theirs, version));
        assert_eq!(answer(ZmtpVersion::One), (signature.to_vec(), ZmtpVersion::One));
        let two = [&signature[..], &[3, kind, 0, 0]].concat();
        assert_eq!(answer(ZmtpVersion::Two), (two, ZmtpVersion::Two));
        let (three, version) = answer(ZmtpVersion::Three);
        assert_eq!(&three[..11], &begins(ours, version)[..11]);
        assert_eq!(&three[11..32], b"\0NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        // And such a peer can read what this end sends.
        let read = heard(theirs, &three, 1);
        assert_eq!(read, (vec!["Ready".to_owned()], Ok(())));
    }
}

#[test]
fn messages_of_zeromq_2_have_their_flags_behind_their_length() {
    let mut bytes = begins(SocketRole::Publisher, ZmtpVersion::One);
    bytes.extend(b"\x03\x01d\0\x09\x01ACCEPTED\x01\x01\x0e\x01" as &[u8]);
    bytes.extend(b"1795206188293\x01\x01" as &[u8]);
    bytes.extend(b"\xff\0\0\0\0\0\0\x01\x2d\0" as &[u8]);
    bytes.extend([b'x'; 300]);
    let mut written = begins(SocketRole::Publisher, ZmtpVersion::One);
    let parts: [&[u8]; 6] = [b"d\0", b"ACCEPTED", b"", b"1795206188293", b"", &[b'x'; 300]];
    message(ZmtpVersion::One, &parts, &mut written);
    assert_eq!(written, bytes);
    // 254 bytes count as 255 with the flags, and 255 has another meaning.
    message(ZmtpVersion::One, &[&[b'y'; 253]], &mut bytes);
    message(ZmtpVersion::One, &[&[b'y'; 254]], &mut bytes);
    message(ZmtpVersion::One, &[&[0; 2_000]], &mut bytes);
    message(ZmtpVersion::One, &[b""], &mut bytes);
    let text = |byte: &str, count| byte.repeat(count);
    let first = format!("d\\x00|ACCEPTED||1795206188293||{}", text("x", 300));
    let expected = ["Ready", &first, &text("y", 253), &text("y", 254), "TooLarge", ""];
    assert_eq!(all(SocketRole::Subscriber, &bytes), expected);
    let after = |more: &[u8]| {
        fault(
            SocketRole::Subscriber,
            &[&begins(SocketRole::Publisher, ZmtpVersion::One)[..], more].concat(),
        )
    };
    assert_eq!(after(&[0]), ZmtpError::Length(0));
    assert_eq!(after(&[1, 2]), ZmtpError::Flags(2));
    assert_eq!(after(b"\xff\x7f\0\0\0\0\0\0\0\0"), ZmtpError::Length((0x7f << 56) - 1));
}

#[test]
fn a_subscriber_of_zeromq_2_is_taken_to_want_everything_and_one_of_3_says_what_it_wants() {
    let named = b"\x05\0name";
    for bytes in [&begins(SocketRole::Subscriber, ZmtpVersion::One)[..], named] {
        assert_eq!(all(SocketRole::Publisher, bytes), ["Ready", "+"]);
    }
    let long = [&b"\xff\0\0\0\0\0\0\x01\0\0"[..], &[b'n'; 255]].concat();
    assert_eq!(all(SocketRole::Publisher, &long), ["Ready", "+"], "the longest name");
    let mut bytes = b"\xff\0\0\0\0\0\0\0\x05\x7f\x01\x02\0\x04name".to_vec();
    bytes.extend(b"\0\x03\x01d\0\0\x03\0d\0" as &[u8]);
    assert_eq!(all(SocketRole::Publisher, &bytes), ["Ready", "+d\\x00", "-d\\x00"]);
    bytes.extend(b"\x04\x05\x04PONG" as &[u8]);
    assert_eq!(fault(SocketRole::Publisher, &bytes), ZmtpError::Flags(4), "commands came with 3.0");
    let kind =
        |kind: u8| [&begins(SocketRole::Subscriber, ZmtpVersion::Two)[..11], &[kind]].concat();
    assert_eq!(fault(SocketRole::Publisher, &kind(1)), ZmtpError::SocketType);
    assert_eq!(fault(SocketRole::Subscriber, &kind(2)), ZmtpError::SocketType);
    let mut nothing = Vec::new();
    subscription(ZmtpVersion::One, b"d", &mut nothing);
    assert_eq!(nothing, b"");
}
