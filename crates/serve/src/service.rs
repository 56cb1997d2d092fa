//! The operations on an open door, for every protocol.
//!
//! Every door implements [`Service`] in its own crate. How a door is opened differs too much to be
//! part of it: that is one function per door where the program starts.

use crate::threads::ServerThreads;
use evenkeel_config::settings::Settings;
use evenkeel_core::units::Time;
use std::pin::Pin;

/// An open door. Dropping it closes everything at once and waits for its threads.
pub trait Service {
    /// Returns the threads that serve.
    fn threads(&self) -> &ServerThreads;

    /// Applies changed settings. The listeners stay as they are.
    fn reload(&self, _settings: &Settings) {}

    /// Reads the door's own files again, such as rules. Returns whether it has any.
    fn reload_files(&self) -> bool {
        false
    }

    /// Checks for changes outside of the configuration. Called once a second.
    fn look(&self, _now: Time) {}

    /// Returns the number of open connections, or of questions that wait for an answer.
    fn connections(&self) -> usize {
        0
    }

    /// Returns the number of connections that were still open when their thread ended.
    fn cut(&self) -> usize {
        self.threads().cut()
    }

    /// Stops accepting, and gives what runs the time that `settings` define. Returns at once.
    fn drain(&self, settings: &Settings);

    /// Closes everything at once, including what runs.
    fn stop_now(&self) {
        self.threads().stop_now();
    }

    /// Waits until the door has ended, after a drain or a stop.
    fn ended(&self) -> Pin<Box<dyn Future<Output = ()> + '_>> {
        Box::pin(self.threads().ended())
    }
}
