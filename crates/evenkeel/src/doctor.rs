//! `evenkeel doctor`: examines the set-up of this machine, and says what is wrong and what to do.
//!
//! `gather` asks the file, the running server, the machine and the backends for facts. `examine` is
//! a pure function from facts to findings, one for each check of its table. `print` writes them.
//! Every check has a paragraph in docs/guide/doctor.md. It changes nothing; what clients do at the
//! moment is shown by `clients` and `top`.

mod examine;
mod facts;
mod gather;
mod print;
mod probe;

pub use examine::{FindingLevel, examine};
pub use gather::{DoctorSources, gather};
pub use print::{PrintStyle, json, text};
