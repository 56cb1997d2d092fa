//! Tells the engine what the backend's cgroup uses, ten times a second, while the configuration
//! names one.
//!
//! Where it cannot be read, requests cost what they do by `cost: shared`: that is told once, and
//! looked at again each time. What is made of it: the core's meter.

use crate::config::cpus::cgroup;
use crate::engine::Engine;
use evenkeel_core::units::{Cost, Nanos};
use std::path::PathBuf;
use std::sync::Weak;
use std::time::Duration;

/// How often it is read, and how often it is looked whether there is one.
const LOOK: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_secs(1);

/// Goes on as long as the engine is there.
pub async fn follow(engine: Weak<Engine>) {
    let mut follower = Follower { engine, known: None, failing: false };
    while let Some(pause) = follower.look() {
        tokio::time::sleep(pause).await;
    }
}

struct Follower {
    engine: Weak<Engine>,
    /// The one that is followed, and what it had used.
    known: Option<(PathBuf, Nanos)>,
    failing: bool,
}

impl Follower {
    /// Looks once. Returns how long to wait for the next look.
    fn look(&mut self) -> Option<Duration> {
        let engine = self.engine.upgrade()?;
        let Some(path) = engine.cgroup() else {
            self.known = None;
            return Some(PAUSE);
        };
        match cgroup::used(&path) {
            Ok(used) => {
                let before = self.known.take().filter(|(known, _)| *known == path);
                if let Some((_, before)) = before {
                    // Made anew, it begins at zero.
                    engine.cgroup_used(Some(Cost::cpu(Nanos(used.0.saturating_sub(before.0)))));
                }
                self.known = Some((path, used));
                self.failing = false;
            }
            Err(error) => {
                engine.cgroup_used(None);
                self.known = None;
                if !std::mem::replace(&mut self.failing, true) {
                    let cgroup = path.display();
                    tracing::warn!(
                        %cgroup, %error, "what the backend uses cannot be read: costs are shared"
                    );
                }
            }
        }
        Some(LOOK)
    }
}
