//! HTTP/1.1 requests, valid ones and others.

use super::random::Random;
use super::{Asked, Sent, Stated, Step};

/// A hostile client's way of sending a request. After all but the first four, it sends no other
/// request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trick {
    Nothing,
    /// Sends it in small pieces.
    Trickle,
    /// Delays the rest for a while.
    Stall,
    /// Sends `Expect: 100-continue`, and continues in any case.
    Expect,
    /// Omits everything after a random byte.
    Cut,
    /// Sends more bytes than the head states.
    Excess,
    /// States a length in addition to chunked encoding.
    Both,
    /// Sends a head that can be read in two ways.
    Ambiguous,
    /// Requests another protocol, and uses it at once.
    Upgrade,
    /// Uses an older HTTP version.
    Old,
}

const TRICKS: [Trick; 14] = [
    Trick::Nothing,
    Trick::Trickle,
    Trick::Stall,
    Trick::Stall,
    Trick::Expect,
    Trick::Cut,
    Trick::Cut,
    Trick::Cut,
    Trick::Cut,
    Trick::Excess,
    Trick::Both,
    Trick::Ambiguous,
    Trick::Upgrade,
    Trick::Old,
];

/// Header lines that no proxy may pass on.
const AMBIGUOUS: [&str; 8] = [
    "content-length: 7\r\ncontent-length: 40",
    "content-length: +40",
    "content-length: 7, 40",
    "content-length : 40",
    "transfer-encoding: xchunked",
    "transfer-encoding: chunked, identity",
    "transfer-encoding:\r\n chunked",
    "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
];

/// A request that appears after another one if that one does not end where it should. It belongs to
/// no client.
const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nhost: site.example\r\nx-token: smuggled\r\n\r\n";

pub fn script(random: &mut Random, requests: &mut [Asked], innocent: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    for index in 0..requests.len() {
        let asked = &mut requests[index];
        let trick = match innocent {
            true if random.one_in(3) => Trick::Trickle,
            true => Trick::Nothing,
            false => *random.pick(&TRICKS),
        };
        write(random, asked, trick, &mut steps);
        let over = !matches!(trick, Trick::Nothing | Trick::Trickle | Trick::Stall | Trick::Expect);
        if over {
            requests[index + 1..].iter_mut().for_each(|asked| asked.sent = Sent::Cut);
            end(random, index + 1, &mut steps);
            return steps;
        }
        // Without this wait, the requests are pipelined.
        if innocent || random.one_in(2) {
            steps.push(Step::Answers(index + 1));
        }
    }
    match innocent {
        true => steps.push(Step::Answers(requests.len())),
        false => end(random, requests.len(), &mut steps),
    }
    steps
}

/// Adds the way in which a hostile client leaves.
fn end(random: &mut Random, asked: usize, steps: &mut Vec<Step>) {
    match random.below(6) {
        0 => {}
        1 => steps.push(Step::Reset),
        2 => steps.extend([Step::HalfClose, Step::Answers(asked)]),
        3 => steps.extend([Step::Pause(random.below(40)), Step::Reset]),
        4 => steps.extend([Step::Deaf(random.below(40)), Step::Answers(asked)]),
        _ => steps.push(Step::Answers(asked)),
    }
}

fn write(random: &mut Random, asked: &mut Asked, trick: Trick, steps: &mut Vec<Step>) {
    let framing = framing(random, asked, trick);
    let (version, more) = match trick {
        Trick::Old => ("1.0", ""),
        Trick::Expect => ("1.1", "expect: 100-continue\r\n"),
        Trick::Upgrade => ("1.1", UPGRADE),
        _ => ("1.1", ""),
    };
    let Asked { method, target, token, .. } = &asked;
    let head = format!(
        "{method} {target} HTTP/{version}\r\nhost: site.example\r\nx-token: {token}\r\n\
         {framing}{more}\r\n"
    );
    let body = match asked.stated {
        Stated::Open => chunks(random, asked),
        _ => asked.body(0..asked.sends),
    };
    let mut bytes = [head.as_bytes(), &body].concat();
    let name = asked.token.clone();
    let what = |part: &str| format!("{part} of {name}");
    match trick {
        Trick::Cut => {
            // Half of the cuts are within the head or shortly after it.
            let most =
                if random.one_in(2) { bytes.len() } else { bytes.len().min(head.len() + 40) };
            bytes.truncate(random.index(most));
            asked.sent = Sent::Cut;
            asked.sends = bytes.len().saturating_sub(head.len()).min(asked.sends);
            pieces(random, &what("the beginning"), &bytes, 2, steps);
            steps.push(Step::Pause(random.below(50)));
        }
        Trick::Stall => {
            let at = head.len() + random.index(body.len() + 1);
            steps.push(Step::Send(what("the beginning"), bytes[..at].to_vec()));
            steps.push(Step::Pause(random.below(50)));
            steps.push(Step::Send(what("the rest"), bytes[at..].to_vec()));
        }
        Trick::Expect => {
            steps.push(Step::Send(what("a head that expects 100"), head.into_bytes()));
            steps.push(Step::Pause(random.below(20)));
            pieces(random, &what("the body"), &body, 2, steps);
        }
        Trick::Upgrade => {
            bytes.extend(asked.body(0..3_000));
            pieces(random, &what("an upgrade and what follows it"), &bytes, 2, steps);
        }
        Trick::Excess => {
            bytes.extend(asked.body(0..100));
            pieces(random, &what("all and more"), &bytes, 3, steps);
        }
        Trick::Both | Trick::Ambiguous => {
            bytes.extend(SMUGGLED.as_bytes());
            pieces(random, &what("all and more"), &bytes, 3, steps);
        }
        Trick::Trickle => pieces(random, &what("a piece"), &bytes, 6, steps),
        Trick::Nothing | Trick::Old => pieces(random, &what("all"), &bytes, 1, steps),
    }
}

const UPGRADE: &str = "connection: upgrade\r\nupgrade: websocket\r\n\
                       sec-websocket-version: 13\r\n\
                       sec-websocket-key: c2l4dGVlbiBieXRlcyBvayE=\r\n";

/// The header lines that determine where the body ends.
fn framing(random: &mut Random, asked: &mut Asked, trick: Trick) -> String {
    match trick {
        Trick::Ambiguous => {
            asked.sent = Sent::Cut;
            return format!("{}\r\n", random.pick(&AMBIGUOUS));
        }
        Trick::Both => {
            (asked.stated, asked.sends, asked.method) = (Stated::Open, 2_000, "POST");
            let length = random.below(60);
            return format!("content-length: {length}\r\ntransfer-encoding: chunked\r\n");
        }
        // Chunked encoding exists in HTTP/1.1 only.
        Trick::Old if asked.stated == Stated::Open => asked.stated = Stated::Length(2_000),
        Trick::Upgrade => (asked.stated, asked.sends, asked.method) = (Stated::Nothing, 0, "GET"),
        _ => {}
    }
    match asked.stated {
        Stated::Nothing => String::new(),
        Stated::Length(length) => format!("content-length: {length}\r\n"),
        Stated::Open => "transfer-encoding: chunked\r\n".to_owned(),
    }
}

fn chunks(random: &mut Random, asked: &Asked) -> Vec<u8> {
    let mut bytes = Vec::new();
    let count = 1 + random.index(4);
    for piece in random.cut(asked.sends, count) {
        let extension = if random.one_in(4) { ";a=b" } else { "" };
        bytes.extend(format!("{:x}{extension}\r\n", piece.len()).into_bytes());
        bytes.extend(asked.body(piece));
        bytes.extend(b"\r\n");
    }
    let trailer =
        if random.one_in(3) { format!("x-token: {}\r\n", asked.token) } else { String::new() };
    bytes.extend(format!("0\r\n{trailer}\r\n").into_bytes());
    bytes
}

/// Adds steps that send bytes in at most `most` pieces.
fn pieces(random: &mut Random, what: &str, bytes: &[u8], most: usize, steps: &mut Vec<Step>) {
    let count = 1 + random.index(most);
    for piece in random.cut(bytes.len(), count) {
        steps.push(Step::Send(what.to_owned(), bytes[piece].to_vec()));
        if random.one_in(2) {
            steps.push(Step::Pause(random.below(4)));
        }
    }
}
