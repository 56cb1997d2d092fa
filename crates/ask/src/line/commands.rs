//! The commands of Redis clients, and their meaning here.
//!
//! `CL.THROTTLE` works as in the redis-cell module: the numbers come with each call, and the reply
//! is five integers. `THROTTLE` with only a key asks about the door's own limits. The other
//! commands are those that client libraries send when they connect, so that any of them works. A
//! command that would need a database is refused by name. Bytes are parsed and written by `resp`.

use super::outcome::{InputOutcome, NextStep};
use super::resp::{self, ReplyWriter, command, integer};
use super::turns::is_turn;
use evenkeel_core::units::{Nanos, SECOND};
use evenkeel_engine::tags::{QuestionNumbers, TagAnswer, TagBatch};

/// The maximum burst, count and quantity.
const NUMBER_MAX: i64 = 1_000_000_000;
/// The maximum period in seconds: a hundred years.
const PERIOD_MAX: i64 = 3_155_760_000;
/// The maximum size of a transaction, in bytes and in commands.
const QUEUED_BYTES_MAX: usize = 64 * 1024;
const QUEUED_MAX: usize = 1024;
/// The maximum length of a name that a connection gives itself, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The state of one connection.
#[derive(Clone)]
pub struct RedisSession {
    id: i64,
    version: u8,
    name: Vec<u8>,
    transaction: Option<RedisTransaction>,
}

/// The commands that wait for `EXEC`, encoded as they were sent.
#[derive(Clone, Default)]
struct RedisTransaction {
    frames: Vec<u8>,
    count: usize,
    /// One of them was refused, so none will run.
    spoiled: bool,
}

struct CommandCall<'a, 'b, 'c> {
    session: &'a mut RedisSession,
    /// The words of the call, beginning with the name.
    words: &'a [&'a [u8]],
    batch: &'a mut TagBatch<'b>,
    reply: ReplyWriter<'c>,
}

/// A refused call: the error message for the client.
struct CommandError(String);

type CommandResult = Result<NextStep, CommandError>;

/// A command that the door accepts.
struct RedisCommand {
    name: &'static str,
    /// The number of words of a call, with its name. A negative number is a minimum.
    arity: i64,
    /// The index of the key among the words; 0 if there is no key.
    key: i64,
    /// Whether the command may wait in a transaction.
    waits: bool,
    run: fn(&mut CommandCall<'_, '_, '_>) -> CommandResult,
}

/// The number of commands at the end of [`COMMANDS`] that `COMMAND` does not list.
const UNLISTED_COMMANDS: usize = 2;

/// All commands, the most frequent first.
const COMMANDS: [RedisCommand; 20] = [
    RedisCommand { name: "cl.throttle", arity: -5, key: 1, waits: true, run: by_own },
    RedisCommand { name: "throttle", arity: -2, key: 1, waits: true, run: throttle },
    RedisCommand { name: "ping", arity: -1, key: 0, waits: true, run: ping },
    RedisCommand { name: "echo", arity: 2, key: 0, waits: true, run: echo },
    RedisCommand { name: "hello", arity: -1, key: 0, waits: false, run: hello },
    RedisCommand { name: "auth", arity: -2, key: 0, waits: false, run: auth },
    RedisCommand { name: "select", arity: 2, key: 0, waits: false, run: select },
    RedisCommand { name: "client", arity: -2, key: 0, waits: false, run: client },
    RedisCommand { name: "command", arity: -1, key: 0, waits: false, run: commands },
    RedisCommand { name: "config", arity: -2, key: 0, waits: false, run: config },
    RedisCommand { name: "info", arity: -1, key: 0, waits: false, run: info },
    RedisCommand { name: "multi", arity: 1, key: 0, waits: false, run: multi },
    RedisCommand { name: "exec", arity: 1, key: 0, waits: false, run: exec },
    RedisCommand { name: "discard", arity: 1, key: 0, waits: false, run: discard },
    RedisCommand { name: "watch", arity: -2, key: 0, waits: false, run: ok },
    RedisCommand { name: "unwatch", arity: 1, key: 0, waits: false, run: ok },
    RedisCommand { name: "reset", arity: 1, key: 0, waits: false, run: reset },
    RedisCommand { name: "quit", arity: -1, key: 0, waits: false, run: quit },
    // A browser sends these to a port that is not HTTP; no Redis client does.
    RedisCommand { name: "post", arity: -1, key: 0, waits: false, run: hang_up },
    RedisCommand { name: "host:", arity: -1, key: 0, waits: false, run: hang_up },
];

impl RedisSession {
    /// A new connection. `id`: the number that `CLIENT ID` returns.
    pub fn new(id: i64) -> RedisSession {
        RedisSession { id, version: 2, name: Vec::new(), transaction: None }
    }

    /// The version of the protocol that the client speaks.
    pub fn version(&self) -> u8 {
        self.version
    }

    /// Answers the commands in `input` until `out` has more than `out_max` bytes.
    pub fn take(
        &mut self,
        input: &[u8],
        batch: &mut TagBatch<'_>,
        out: &mut Vec<u8>,
        out_max: usize,
    ) -> InputOutcome {
        let mut words = Vec::new();
        let mut taken = InputOutcome { used: 0, asked: 0, faults: 0, then: NextStep::Read };
        while taken.then == NextStep::Read {
            match command(&input[taken.used..], &mut words) {
                Ok(None) => return taken,
                Ok(Some(used)) => {
                    if words.first().is_some_and(|name| is_turn(name))
                        // In a transaction they are unknown.
                        && self.transaction.is_none()
                    {
                        taken.then = NextStep::Turn;
                        return taken;
                    }
                    taken.used += used;
                    if words.is_empty() {
                        continue;
                    }
                    taken.asked += 1;
                    taken.then = self.call(&words, batch, out, &mut taken.faults);
                }
                Err(resp::RespError(fault)) => {
                    ReplyWriter::new(out, self.version).error(&format!("ERR {fault}"));
                    return InputOutcome { used: input.len(), then: NextStep::End, ..taken };
                }
            }
            if out.len() > out_max && taken.then == NextStep::Read {
                taken.then = NextStep::Resume;
            }
        }
        taken
    }

    /// Runs one command, or stores it until `EXEC`.
    fn call(
        &mut self,
        words: &[&[u8]],
        batch: &mut TagBatch<'_>,
        out: &mut Vec<u8>,
        faults: &mut u64,
    ) -> NextStep {
        let found = find(words);
        let done = match (found, &mut self.transaction) {
            (Ok(command), Some(transaction)) if command.waits => {
                transaction.keep(words).map(|()| {
                    ReplyWriter::new(out, self.version).simple("QUEUED");
                    NextStep::Read
                })
            }
            (Ok(command), _) => {
                let reply = ReplyWriter::new(out, self.version);
                (command.run)(&mut CommandCall { session: self, words, batch, reply })
            }
            (Err(refused), transaction) => {
                transaction.iter_mut().for_each(|transaction| transaction.spoiled = true);
                Err(refused)
            }
        };
        done.unwrap_or_else(|CommandError(why)| {
            *faults += 1;
            ReplyWriter::new(out, self.version).error(&why);
            NextStep::Read
        })
    }
}

/// Finds the command that is called, and checks the number of words.
fn find(words: &[&[u8]]) -> Result<&'static RedisCommand, CommandError> {
    let name = words.first().copied().unwrap_or_default();
    let found = COMMANDS.iter().find(|known| name.eq_ignore_ascii_case(known.name.as_bytes()));
    let command = found.ok_or_else(|| {
        let name: String = String::from_utf8_lossy(name).chars().take(64).collect();
        CommandError(format!(
            "ERR unknown command '{name}' here: this is a rate limiter, which knows CL.THROTTLE, \
             THROTTLE, EK.TAKE, EK.TRY and EK.DONE"
        ))
    })?;
    let count = i64::try_from(words.len()).unwrap_or(i64::MAX);
    if count == command.arity || (command.arity < 0 && count >= -command.arity) {
        return Ok(command);
    }
    Err(wrong_count(command.name))
}

fn wrong_count(name: &str) -> CommandError {
    CommandError(format!("ERR wrong number of arguments for '{name}' command"))
}

impl RedisTransaction {
    fn keep(&mut self, words: &[&[u8]]) -> Result<(), CommandError> {
        let bytes: usize = words.iter().map(|word| word.len() + 16).sum();
        if self.count >= QUEUED_MAX || self.frames.len() + bytes > QUEUED_BYTES_MAX {
            self.spoiled = true;
            return Err(CommandError("ERR the transaction is too long".to_owned()));
        }
        self.count += 1;
        let mut frame = ReplyWriter::new(&mut self.frames, 2);
        frame.array(words.len());
        words.iter().for_each(|word| frame.bulk(word));
        Ok(())
    }
}

impl CommandCall<'_, '_, '_> {
    fn word(&self, at: usize) -> &[u8] {
        self.words.get(at).copied().unwrap_or_default()
    }

    fn is(&self, at: usize, word: &str) -> bool {
        self.word(at).eq_ignore_ascii_case(word.as_bytes())
    }

    /// Parses the word at `at` as a number within a range. `name`: for the error message.
    fn number(&self, at: usize, name: &str, least: i64, most: i64) -> Result<u64, CommandError> {
        let number = integer(self.word(at)).filter(|number| (least..=most).contains(number));
        number.and_then(|number| u64::try_from(number).ok()).ok_or_else(|| {
            CommandError(format!("ERR {name} must be a whole number from {least} to {most}"))
        })
    }

    /// Returns the number of hits asked for: the word at `at`, or one if it is missing.
    fn quantity(&self, at: usize) -> Result<u64, CommandError> {
        if self.words.len() > at { self.number(at, "quantity", 0, NUMBER_MAX) } else { Ok(1) }
    }

    /// Writes the five integers: limited, capacity, left, seconds until a retry, seconds until
    /// full.
    fn tell(&mut self, told: &TagAnswer) -> CommandResult {
        let small = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        // Rounded up: a client that waits this long is served.
        let seconds = |length: Nanos| small(length.0.div_ceil(SECOND));
        self.reply.array(5);
        self.reply.integer(i64::from(!told.served));
        self.reply.integer(small(told.capacity));
        self.reply.integer(small(told.left));
        self.reply.integer(told.retry.map_or(-1, seconds));
        self.reply.integer(seconds(told.full));
        Ok(NextStep::Read)
    }
}

/// The answer for a question that is not counted: served.
const UNCOUNTED: TagAnswer =
    TagAnswer { served: true, capacity: 0, left: 0, retry: None, full: Nanos::ZERO };

/// `CL.THROTTLE key max_burst count period [quantity]`: a limit with the numbers of the call.
fn by_own(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    if call.words.len() > 6 {
        return Err(wrong_count("cl.throttle"));
    }
    let burst = call.number(2, "max_burst", 0, NUMBER_MAX)?;
    let count = call.number(3, "count", 1, NUMBER_MAX)?;
    let period = call.number(4, "period", 1, PERIOD_MAX)?;
    let quantity = call.quantity(5)?;
    let interval = Nanos((period * SECOND + count / 2) / count);
    let numbers = QuestionNumbers { interval: interval.max(Nanos(1)), capacity: burst + 1 };
    let key = call.words[1];
    let told = call.batch.ask_by_own_numbers(key, quantity, numbers).unwrap_or(UNCOUNTED);
    call.tell(&told)
}

/// `THROTTLE key [quantity]` with the limits of the door, or with all the words of `CL.THROTTLE`.
fn throttle(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    match call.words.len() {
        2 | 3 => {
            let (key, quantity) = (call.words[1], call.quantity(2)?);
            let told = call.batch.ask_state(key, quantity).unwrap_or(UNCOUNTED);
            call.tell(&told)
        }
        5 | 6 => by_own(call),
        _ => Err(wrong_count("throttle")),
    }
}

fn ping(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    match call.words {
        [_] => call.reply.simple("PONG"),
        [_, text] => call.reply.bulk(text),
        _ => return Err(wrong_count("ping")),
    }
    Ok(NextStep::Read)
}

fn echo(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    call.reply.bulk(call.words[1]);
    Ok(NextStep::Read)
}

fn ok(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    call.reply.simple("OK");
    Ok(NextStep::Read)
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`: negotiates the protocol version.
fn hello(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    let version = match call.words.get(1).copied() {
        None => call.session.version,
        Some(b"2") => 2,
        Some(b"3") => 3,
        Some(_) => return Err(CommandError("NOPROTO unsupported protocol version".to_owned())),
    };
    let mut at = 2;
    while at < call.words.len() {
        // No password is configured, so any password is accepted.
        at += match () {
            () if call.is(at, "auth") && call.words.len() > at + 2 => 3,
            () if call.is(at, "setname") && call.words.len() > at + 1 => {
                call.session.name = named(call.words[at + 1])?;
                2
            }
            () => return Err(CommandError("ERR syntax error in HELLO".to_owned())),
        };
    }
    call.session.version = version;
    let reply = &mut call.reply;
    reply.speak(version);
    reply.map(7);
    for (key, value) in [("server", "evenkeel"), ("version", env!("CARGO_PKG_VERSION"))] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.integer(version.into());
    reply.bulk(b"id");
    reply.integer(call.session.id);
    for (key, value) in [("mode", "standalone"), ("role", "master")] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
    Ok(NextStep::Read)
}

fn named(name: &[u8]) -> Result<Vec<u8>, CommandError> {
    if name.len() <= NAME_BYTES_MAX && name.iter().all(u8::is_ascii_graphic) {
        return Ok(name.to_vec());
    }
    Err(CommandError(
        "ERR a client's name has no spaces, newlines or special characters".to_owned(),
    ))
}

fn auth(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    match call.words.len() {
        2 => Err(CommandError("ERR AUTH called, but no password is configured here".to_owned())),
        3 => ok(call),
        _ => Err(wrong_count("auth")),
    }
}

fn select(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    match call.word(1) {
        b"0" => ok(call),
        _ => Err(CommandError("ERR DB index is out of range".to_owned())),
    }
}

fn client(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    let (two, three) = (call.words.len() == 2, call.words.len() == 3);
    if call.is(1, "setname") && three {
        call.session.name = named(call.words[2])?;
        return ok(call);
    }
    if ["setinfo", "no-evict", "no-touch"].iter().any(|word| call.is(1, word)) {
        return ok(call);
    }
    if call.is(1, "id") && two {
        call.reply.integer(call.session.id);
    } else if call.is(1, "getname") && two {
        match call.session.name.as_slice() {
            [] => call.reply.null(),
            name => call.reply.bulk(name),
        }
    } else if (call.is(1, "info") || call.is(1, "list")) && two {
        let RedisSession { id, name, version, .. } = &*call.session;
        let name = String::from_utf8_lossy(name);
        call.reply.bulk(format!("id={id} name={name} db=0 resp={version}\n").as_bytes());
    } else {
        let word: String = String::from_utf8_lossy(call.word(1)).chars().take(64).collect();
        return Err(CommandError(format!("ERR unknown subcommand '{word}' of CLIENT")));
    }
    Ok(NextStep::Read)
}

/// `COMMAND`: client libraries use it to find keys, and terminals to complete words.
fn commands(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    let all = &COMMANDS[..COMMANDS.len() - UNLISTED_COMMANDS];
    let describe = |reply: &mut ReplyWriter<'_>, command: &RedisCommand| {
        reply.array(6);
        reply.bulk(command.name.as_bytes());
        reply.integer(command.arity);
        reply.array(1);
        reply.simple("fast");
        // The first key, the last key and the step between keys: one key or none.
        (0..3).for_each(|_| reply.integer(command.key));
    };
    if call.words.len() == 1 {
        call.reply.array(all.len());
        all.iter().for_each(|command| describe(&mut call.reply, command));
    } else if call.is(1, "count") {
        call.reply.integer(i64::try_from(all.len()).unwrap_or(0));
    } else if call.is(1, "docs") {
        call.reply.map(0);
    } else if call.is(1, "list") {
        call.reply.array(all.len());
        all.iter().for_each(|command| call.reply.bulk(command.name.as_bytes()));
    } else if call.is(1, "info") {
        call.reply.array(call.words.len() - 2);
        for name in &call.words[2..] {
            let known = |known: &&RedisCommand| name.eq_ignore_ascii_case(known.name.as_bytes());
            match all.iter().find(known) {
                Some(command) => describe(&mut call.reply, command),
                None => call.reply.null(),
            }
        }
    } else {
        return Err(CommandError("ERR unknown subcommand of COMMAND".to_owned()));
    }
    Ok(NextStep::Read)
}

/// `CONFIG`: nothing can be configured over this protocol. `CONFIG GET` returns an empty map, which
/// tools accept.
fn config(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    if !call.is(1, "get") {
        return Err(CommandError("ERR the configuration is a file; see evenkeel show".to_owned()));
    }
    call.reply.map(0);
    Ok(NextStep::Read)
}

fn info(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    let version = env!("CARGO_PKG_VERSION");
    let text = format!(
        "# Server\r\nserver_name:evenkeel\r\nevenkeel_version:{version}\r\n\
         redis_mode:standalone\r\n# Replication\r\nrole:master\r\n# Persistence\r\nloading:0\r\n"
    );
    call.reply.bulk(text.as_bytes());
    Ok(NextStep::Read)
}

fn multi(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    if call.session.transaction.is_some() {
        return Err(CommandError("ERR MULTI calls can not be nested".to_owned()));
    }
    call.session.transaction = Some(RedisTransaction::default());
    ok(call)
}

fn discard(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    match call.session.transaction.take() {
        Some(_) => ok(call),
        None => Err(CommandError("ERR DISCARD without MULTI".to_owned())),
    }
}

/// Runs the stored commands. No other command runs in between; that is all that a transaction
/// guarantees here.
fn exec(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    let Some(transaction) = call.session.transaction.take() else {
        return Err(CommandError("ERR EXEC without MULTI".to_owned()));
    };
    if transaction.spoiled {
        let why = "EXECABORT Transaction discarded because of previous errors.";
        return Err(CommandError(why.to_owned()));
    }
    call.reply.array(transaction.count);
    let (mut rest, mut words) = (transaction.frames.as_slice(), Vec::new());
    while let Ok(Some(used)) = command(rest, &mut words) {
        call.session.call(&words, call.batch, call.reply.out(), &mut 0);
        rest = &rest[used..];
    }
    Ok(NextStep::Read)
}

fn reset(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    *call.session = RedisSession::new(call.session.id);
    call.reply.simple("RESET");
    Ok(NextStep::Read)
}

fn quit(call: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    call.reply.simple("OK");
    Ok(NextStep::End)
}

fn hang_up(_: &mut CommandCall<'_, '_, '_>) -> CommandResult {
    Ok(NextStep::End)
}
