//! The report of a codec to the connection about the bytes that it took.
//!
//! Both protocols report the same. The report is handled in `connection`, and the bytes are taken
//! in `splitter` and `commands`.

/// The outcome of parsing and answering some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputOutcome {
    /// The number of bytes consumed.
    pub used: usize,
    /// The number of queries in them.
    pub asked: u64,
    /// The number of those queries that were invalid.
    pub faults: u64,
    /// What to do next.
    pub then: NextStep,
}

/// The next step of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Wait for more bytes: the rest is the beginning of a query.
    Read,
    /// Continue with the rest once the client has read the answers.
    Resume,
    /// Continue with the rest, which begins with a command about a turn (`turns`).
    Turn,
    /// End once the client has read the answers.
    End,
}
