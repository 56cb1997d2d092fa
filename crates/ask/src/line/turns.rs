//! The commands about turns, in both protocols: how they are read, and how their replies are
//! written.
//!
//! `TAKE tag [cost=120ms] [wait=5s]` and `TRY tag [cost=120ms]` ask for a turn, `DONE id
//! [cost=90ms]` gives it back, and `PLACE tag` asks how many would come before. Redis clients put
//! `EK.` before the name and send the same words. The connection of a waiting program is in
//! `connection`, and the order of turns in `engine::turns`.

use super::resp::{self, ReplyWriter};
use evenkeel_core::units::{Cost, Nanos};
use evenkeel_engine::turns::TurnId;

/// The longest time that a command may state.
const TIME_MAX: Nanos = Nanos::from_secs(365 * 86_400);
/// A command has at most this many bytes more than its tag.
pub const COMMAND_BYTES_MAX: usize = 64;

/// A command about a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnCommand<'a> {
    /// Wait for a turn, for this long at most.
    Take { tag: &'a [u8], cost: Option<Cost>, wait: Option<Nanos> },
    /// Take a turn if one is free.
    Try { tag: &'a [u8], cost: Option<Cost> },
    /// Tell how many would come before it.
    Place { tag: &'a [u8] },
    /// Give a turn back.
    Done { id: TurnId, cost: Option<Cost> },
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TurnReply {
    Turn(TurnId),
    /// The wait is over.
    Late,
    /// There is no free turn, or no place for one more program that waits.
    Busy,
    /// The number of programs that probably have their turns before.
    Place(usize),
    /// Whether the turn was still held.
    Done(bool),
    /// The command is wrong in this way.
    Fault(String),
}

/// A command, or what is wrong with it.
pub type TurnCommandResult<'a> = Result<TurnCommand<'a>, String>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Take,
    Try,
    Done,
    Place,
}

impl Verb {
    /// The verb that a line begins with, and its length with the space after it.
    fn of_line(line: &[u8]) -> Option<(Verb, usize)> {
        let verbs: [(&[u8], Verb); 4] = [
            (b"TAKE ", Verb::Take),
            (b"TRY ", Verb::Try),
            (b"DONE ", Verb::Done),
            (b"PLACE ", Verb::Place),
        ];
        verbs
            .iter()
            .find(|(word, _)| line.starts_with(word))
            .map(|(word, verb)| (*verb, word.len()))
    }

    /// The verb of a command of a Redis client.
    fn of_word(word: &[u8]) -> Option<Verb> {
        let verbs: [(&[u8], Verb); 4] = [
            (b"EK.TAKE", Verb::Take),
            (b"EK.TRY", Verb::Try),
            (b"EK.DONE", Verb::Done),
            (b"EK.PLACE", Verb::Place),
        ];
        verbs.iter().find(|(name, _)| word.eq_ignore_ascii_case(name)).map(|(_, verb)| *verb)
    }
}

/// Whether a Redis client's command is about a turn.
pub fn is_turn(word: &[u8]) -> bool {
    Verb::of_word(word).is_some()
}

/// The number of bytes before the first line that is a command about a turn. `tag_bytes_max`: the
/// longest tag; a longer line is no command. `begins`: whether the first byte begins a line.
pub fn plain_part(input: &[u8], begins: bool, tag_bytes_max: usize) -> usize {
    let mut start = match begins {
        true => 0,
        false => line_end(input).map_or(input.len(), |end| end + 1),
    };
    while start < input.len() {
        let rest = &input[start..];
        let end = line_end(rest);
        let length = end.unwrap_or(rest.len());
        if Verb::of_line(rest).is_some() && length <= tag_bytes_max + COMMAND_BYTES_MAX {
            return start;
        }
        start += end.map_or(rest.len(), |end| end + 1);
    }
    input.len()
}

fn line_end(input: &[u8]) -> Option<usize> {
    memchr::memchr(b'\n', input)
}

/// Reads the command at the beginning of `input`, and its length; `None` if it is not complete, or
/// is none.
pub fn read_line(input: &[u8]) -> Option<(TurnCommandResult<'_>, usize)> {
    let (verb, begin) = Verb::of_line(input)?;
    let end = line_end(input)?;
    let mut rest = &input[begin..end];
    let mut options = Options::default();
    // From the end, because a tag may contain spaces.
    while let Some(at) = rest.iter().rposition(|byte| *byte == b' ')
        && let Some(read) = options.read(&rest[at + 1..])
    {
        if let Err(fault) = read {
            return Some((Err(fault), end + 1));
        }
        rest = &rest[..at];
    }
    // `TAKE cost=1s`
    if verb != Verb::Done && options.read(rest).is_some() {
        rest = b"";
    }
    Some((options.command(verb, rest), end + 1))
}

/// The same for a Redis client.
pub fn read_words(input: &[u8]) -> Option<(TurnCommandResult<'_>, usize)> {
    let mut words = Vec::new();
    let used = resp::command(input, &mut words).ok().flatten()?;
    let verb = Verb::of_word(words.first()?)?;
    let name = ["ek.take", "ek.try", "ek.done", "ek.place"][verb as usize];
    let Some(first) = words.get(1) else {
        return Some((Err(format!("wrong number of arguments for '{name}' command")), used));
    };
    let mut options = Options::default();
    for word in &words[2..] {
        let word = *word;
        match options.read(word) {
            Some(Ok(())) => {}
            Some(Err(fault)) => return Some((Err(fault), used)),
            None => {
                let fault = format!("unknown word `{}`: write cost=120ms or wait=5s", shown(word));
                return Some((Err(fault), used));
            }
        }
    }
    Some((options.command(verb, first), used))
}

/// The words after a tag or an id.
#[derive(Default)]
struct Options {
    cost: Option<Nanos>,
    wait: Option<Nanos>,
}

impl Options {
    /// Reads a word; `None` if it is none of these.
    fn read(&mut self, word: &[u8]) -> Option<Result<(), String>> {
        let word = std::str::from_utf8(word).ok()?;
        let (name, value) = word.split_once('=')?;
        let place = match name {
            "cost" => &mut self.cost,
            "wait" => &mut self.wait,
            _ => return None,
        };
        let time = value.parse::<Nanos>().ok().filter(|time| *time <= TIME_MAX);
        if time.is_none() {
            return Some(Err(format!(
                "`{}` is not a time; write {name}=120ms",
                shown(word.as_bytes())
            )));
        }
        if place.is_some() {
            return Some(Err(format!("`{name}` is given twice")));
        }
        *place = time;
        Some(Ok(()))
    }

    fn command(self, verb: Verb, first: &[u8]) -> TurnCommandResult<'_> {
        let cost = self.cost.map(Cost::cpu);
        match (verb, self.wait) {
            (Verb::Take | Verb::Try | Verb::Place, _) if first.is_empty() => {
                Err("a tag is missing".to_owned())
            }
            (Verb::Take, wait) => Ok(TurnCommand::Take { tag: first, cost, wait }),
            (_, Some(_)) => Err("`wait` is only for TAKE".to_owned()),
            (Verb::Place, None) if cost.is_some() => {
                Err("`cost` is not for PLACE, which counts all alike".to_owned())
            }
            (Verb::Place, None) => Ok(TurnCommand::Place { tag: first }),
            (Verb::Try, None) => Ok(TurnCommand::Try { tag: first, cost }),
            (Verb::Done, None) => {
                let id = std::str::from_utf8(first).ok().and_then(|id| id.parse().ok());
                let fault = || format!("`{}` is not the id of a turn", shown(first));
                Ok(TurnCommand::Done { id: TurnId(id.ok_or_else(fault)?), cost })
            }
        }
    }
}

/// The beginning of a client's word, for a message.
fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(word).chars().filter(|c| !c.is_control()).take(64).collect()
}

impl TurnReply {
    /// Writes the reply as a line.
    pub fn write_line(&self, out: &mut Vec<u8>) {
        let text = match self {
            TurnReply::Turn(TurnId(id)) => format!("TURN {id}\n"),
            TurnReply::Late => "LATE\n".to_owned(),
            TurnReply::Busy => "BUSY\n".to_owned(),
            TurnReply::Place(ahead) => format!("PLACE {ahead}\n"),
            TurnReply::Done(true) => "OK\n".to_owned(),
            TurnReply::Done(false) => "NO\n".to_owned(),
            TurnReply::Fault(fault) => format!("ERR {fault}\n"),
        };
        out.extend_from_slice(text.as_bytes());
    }

    /// Writes the reply for a Redis client that speaks this version.
    pub fn write_resp(&self, version: u8, out: &mut Vec<u8>) {
        let mut reply = ReplyWriter::new(out, version);
        match self {
            TurnReply::Turn(TurnId(id)) => reply.bulk(itoa::Buffer::new().format(*id).as_bytes()),
            TurnReply::Late | TurnReply::Busy => reply.null(),
            TurnReply::Place(ahead) => reply.integer(i64::try_from(*ahead).unwrap_or(i64::MAX)),
            TurnReply::Done(held) => reply.integer(i64::from(*held)),
            TurnReply::Fault(fault) => reply.error(&format!("ERR {fault}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuzz_a_command_is_a_line_and_nothing_of_the_next_one() {
        let words = [
            "PLACE ",
            "TAKE ",
            "TRY ",
            "DONE ",
            "cost=",
            "wait=",
            "5",
            "ms",
            "s",
            " ",
            "\n",
            "a",
            "-1",
            "\r",
            "1e9",
            "18446744073709551616",
            "\u{fc}",
        ];
        evenkeel_fuzz::fuzz().with_type::<(Vec<u8>, Vec<u8>)>().for_each(|(picks, more)| {
            let mut input: Vec<u8> = Vec::new();
            for pick in picks {
                match words.get(usize::from(*pick) % (words.len() + 1)) {
                    Some(word) => input.extend_from_slice(word.as_bytes()),
                    None => input.push(*pick),
                }
            }
            assert!(plain_part(&input, true, 16) <= input.len());
            assert!(plain_part(&input, false, 16) <= input.len());
            let read = read_line(&input);
            let begins = ["TAKE ", "TRY ", "DONE ", "PLACE "]
                .iter()
                .any(|verb| input.starts_with(verb.as_bytes()));
            let line = input.iter().position(|byte| *byte == b'\n').filter(|_| begins);
            assert_eq!(read.as_ref().map(|(_, used)| *used), line.map(|end| end + 1));
            let Some((command, used)) = read else { return };
            if let Err(fault) = &command {
                assert!(!fault.contains(char::is_control), "{fault:?}");
            }
            assert!(read_line(&input[..used - 1]).is_none(), "it is complete with its newline");
            let longer = [&input[..used], more].concat();
            assert_eq!(read_line(&longer), Some((command, used)));
        });
    }

    #[test]
    fn fuzz_what_a_program_asks_for_is_read_back_in_both_protocols() {
        evenkeel_fuzz::fuzz().with_type::<(Vec<u8>, u16, u16)>().for_each(|(tag, cost, wait)| {
            let tag: Vec<u8> = tag.iter().copied().filter(|byte| *byte != b'\n').collect();
            if tag.is_empty() {
                return;
            }
            let (cost, wait) = (u64::from(*cost), u64::from(*wait));
            let options = [format!("cost={cost}us"), format!("wait={wait}us")];
            let taken = TurnCommand::Take {
                tag: &tag,
                cost: Some(Cost::cpu(Nanos(1_000 * cost))),
                wait: Some(Nanos(1_000 * wait)),
            };
            let line = [b"TAKE ", &*tag, b" ", options.join(" ").as_bytes(), b"\n"].concat();
            let ends_alike =
                tag.ends_with(b" ") || tag.windows(5).any(|at| at == b"cost=" || at == b"wait=");
            if !ends_alike {
                assert_eq!(read_line(&line), Some((Ok(taken.clone()), line.len())));
            }
            let words = [b"EK.TAKE", &*tag, options[0].as_bytes(), options[1].as_bytes()];
            let mut framed = format!("*{}\r\n", words.len()).into_bytes();
            for word in words {
                framed.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
                framed.extend_from_slice(&[word, b"\r\n"].concat());
            }
            assert_eq!(read_words(&framed), Some((Ok(taken), framed.len())));
        });
    }
}
