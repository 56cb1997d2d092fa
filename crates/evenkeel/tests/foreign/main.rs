//! Configurations of other programs as Evenkeel runs them.

mod smockron;
mod tempomat;
