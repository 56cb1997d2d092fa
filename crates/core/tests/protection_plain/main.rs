//! The acceptance criteria of the fair queue, with `known: off`: they hold if clients that were
//! here before are not distinguished from strangers.

#[path = "../protection/main.rs"]
mod protection;
