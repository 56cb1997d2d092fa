//! Configurations of other programs as ours runs them.

mod smockron;
mod tempomat;
