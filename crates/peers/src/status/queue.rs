//! The state of the queues that instances share, for operators: the part of each instance, why a
//! peer does not share one, and the log lines about their owners.
//!
//! The state of a queue is in `evenkeel_core::queue::shared`; here its instances get their names.
//! It is compared with that of a second before, so there is at most one line a second for a queue.

use evenkeel_core::queue::shared::{RequestCounts, SharedQueueReport};
use evenkeel_core::replica::{QueueApart, Replica};
use evenkeel_engine::replicated::Replicated;
use evenkeel_telemetry::counts::peers::QueuePart;
use std::collections::HashMap;
use std::sync::Arc;

/// The queues of this instance that others can share, each with its fingerprint.
#[derive(Default)]
pub struct QueueReports(Vec<(u64, SharedQueueReport)>);

impl QueueReports {
    /// The present state of the queues of `engines`.
    pub fn of(engines: &[Arc<dyn Replicated>]) -> QueueReports {
        let queue = |engine: &Arc<dyn Replicated>| {
            let (queue, admission) = engine.shared_queue()?;
            Some((queue, admission.report()?))
        };
        QueueReports(engines.iter().filter_map(queue).collect())
    }

    /// The part of this instance; `None` if it shares no queue.
    pub fn own(&self) -> Option<QueuePart> {
        sum(self.0.iter().map(|(_, report)| part(report.is_owner(), report.counts)))
    }

    /// The part of another instance; `None` if it takes part in no queue of this one.
    pub fn part(&self, node: u64) -> Option<QueuePart> {
        sum(self.0.iter().filter_map(|(_, report)| {
            let mut others = report.others.iter();
            let other = others.find(|other| other.id.node == node && other.takes_part())?;
            Some(part(report.owner == node, other.counts))
        }))
    }

    /// Why a live peer does not share a queue of this instance.
    pub fn apart(&self, replica: &Replica, node: u64) -> Option<&'static str> {
        let why = self.0.iter().find_map(|(queue, _)| replica.queue_apart(node, *queue))?;
        Some(match why {
            QueueApart::NoQueue => {
                "it shares no queue; `proxy.queue.shared` is false there, or its version is older"
            }
            QueueApart::OtherQueue => {
                "its queue is another one, because its first limit counts by something else"
            }
            QueueApart::OtherVersion => "its version exchanges other messages about queues",
        })
    }
}

fn part(owns: bool, counts: RequestCounts) -> QueuePart {
    QueuePart { owns, waiting: counts.waiting.into(), running: counts.running.into() }
}

fn sum(parts: impl Iterator<Item = QueuePart>) -> Option<QueuePart> {
    parts.reduce(|sum, one| QueuePart {
        owns: sum.owns || one.owns,
        waiting: sum.waiting + one.waiting,
        running: sum.running + one.running,
    })
}

/// Why an instance has taken a queue over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakeoverCause {
    /// The owner has closed its connection.
    Ended,
    Silent,
    /// The owner sends messages, but has not answered requests.
    Unanswered,
}

/// The log lines about a queue.
#[derive(Debug, PartialEq, Eq)]
enum QueueNotice {
    /// This instance has taken the queue over from `before`.
    TakenOver { before: u64, why: TakeoverCause },
    /// This instance has another owner.
    Follows { owner: u64 },
    /// These instances are silent, which were not before.
    Silent { nodes: Vec<u64> },
}

/// The state of a queue a second ago.
#[derive(Debug)]
struct KnownQueue {
    owner: u64,
    takeovers: u64,
    silent: Vec<u64>,
}

impl KnownQueue {
    /// A queue that has just begun to be shared: each instance begins as its owner.
    fn begun(report: &SharedQueueReport) -> KnownQueue {
        KnownQueue { owner: report.own.node, takeovers: 0, silent: Vec::new() }
    }

    /// Compares the queue with what was known of it. A change of the owner goes first.
    fn compare(&mut self, report: &SharedQueueReport) -> Option<QueueNotice> {
        let silent = report.others.iter().filter(|other| other.is_silent);
        let silent: Vec<u64> = silent.map(|other| other.id.node).collect();
        let before = std::mem::replace(&mut self.owner, report.owner);
        let takeovers = std::mem::replace(&mut self.takeovers, report.takeovers);
        let known = std::mem::replace(&mut self.silent, silent);
        if report.is_owner() && takeovers != report.takeovers {
            let why = match report.others.iter().find(|other| other.id.node == before) {
                None => TakeoverCause::Ended,
                Some(other) if other.is_silent => TakeoverCause::Silent,
                Some(_) => TakeoverCause::Unanswered,
            };
            return Some(QueueNotice::TakenOver { before, why });
        }
        if before != report.owner {
            return Some(QueueNotice::Follows { owner: report.owner });
        }
        let nodes: Vec<u64> =
            self.silent.iter().copied().filter(|node| !known.contains(node)).collect();
        (!nodes.is_empty()).then_some(QueueNotice::Silent { nodes })
    }
}

/// The state of all queues a second ago.
#[derive(Default)]
pub struct QueueNews(HashMap<u64, KnownQueue>);

impl QueueNews {
    /// Logs what has changed. `name_of` is the name of an instance.
    pub fn tell(&mut self, reports: &QueueReports, name_of: impl Fn(u64) -> String) {
        self.0.retain(|queue, _| reports.0.iter().any(|(known, _)| known == queue));
        for (queue, report) in &reports.0 {
            let known = self.0.entry(*queue).or_insert_with(|| KnownQueue::begun(report));
            if let Some(notice) = known.compare(report) {
                log(&notice, report, &name_of);
            }
        }
    }
}

fn log(notice: &QueueNotice, report: &SharedQueueReport, name_of: impl Fn(u64) -> String) {
    let instances = report.instances();
    let names = |nodes: &[u64]| nodes.iter().map(|node| name_of(*node)).collect::<Vec<_>>();
    match notice {
        QueueNotice::TakenOver { before, why } => {
            // It may have lost the queue and taken it over within a second.
            let before = Some(*before).filter(|before| *before != report.own.node).map(name_of);
            let what = "this instance has taken over the queue that instances share";
            match why {
                TakeoverCause::Ended => {
                    tracing::info!(target: "evenkeel::peers", before, instances, "{what}");
                }
                TakeoverCause::Silent => tracing::warn!(
                    target: "evenkeel::peers", before, instances,
                    why = "the owner is silent", "{what}"
                ),
                TakeoverCause::Unanswered => tracing::warn!(
                    target: "evenkeel::peers", before, instances,
                    why = "the owner does not answer", "{what}"
                ),
            }
        }
        QueueNotice::Follows { owner } => {
            tracing::info!(
                target: "evenkeel::peers", owner = name_of(*owner), instances,
                "this instance has joined the queue of another one"
            );
        }
        QueueNotice::Silent { nodes } => {
            tracing::warn!(
                target: "evenkeel::peers", peers = names(nodes).join(", "), instances,
                "instances that share the queue are silent; they rejoin when they answer again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::queue::shared::{InstanceId, OtherInstance};
    use evenkeel_core::units::Time;

    fn id(node: u64) -> InstanceId {
        InstanceId { life: node, node }
    }

    fn report(owner: u64, takeovers: u64, silent: &[u64]) -> SharedQueueReport {
        let counts = RequestCounts { waiting: 5, running: 2 };
        let other = |node: u64| OtherInstance {
            id: id(node),
            counts,
            kept: None,
            is_silent: silent.contains(&node),
            is_apart: false,
        };
        SharedQueueReport {
            own: id(2),
            owner,
            term: 1,
            since: Time(1),
            takeovers,
            slots: 4,
            counts,
            kept: None,
            all: counts.plus(counts).plus(counts),
            others: vec![other(1), other(3)],
        }
    }

    #[test]
    fn each_change_is_told_once() {
        let mut known = KnownQueue::begun(&report(2, 0, &[]));
        let follows = |owner| Some(QueueNotice::Follows { owner });
        let taken_over = |before, why| Some(QueueNotice::TakenOver { before, why });
        let ended = |mut report: SharedQueueReport, node| {
            report.others.retain(|other| other.id.node != node);
            report
        };
        for (report, expected) in [
            (report(2, 0, &[]), None),
            (report(1, 0, &[]), follows(1)),
            (report(1, 0, &[]), None),
            (report(1, 0, &[3]), Some(QueueNotice::Silent { nodes: vec![3] })),
            (report(1, 0, &[3]), None),
            (report(2, 1, &[1]), taken_over(1, TakeoverCause::Silent)),
            (report(2, 1, &[1]), None),
            (report(3, 2, &[1]), follows(3)),
            (report(2, 3, &[]), taken_over(3, TakeoverCause::Unanswered)),
            (report(1, 3, &[]), follows(1)),
            (ended(report(2, 4, &[]), 1), taken_over(1, TakeoverCause::Ended)),
        ] {
            assert_eq!(known.compare(&report), expected, "{report:?}");
        }
    }

    #[test]
    fn the_parts_of_several_queues_are_added() {
        let reports = QueueReports(vec![(7, report(1, 0, &[3])), (8, report(2, 0, &[]))]);
        let part = |owns, waiting, running| Some(QueuePart { owns, waiting, running });
        assert_eq!(reports.own(), part(true, 10, 4));
        assert_eq!(reports.part(1), part(true, 10, 4));
        assert_eq!(reports.part(3), part(false, 5, 2));
        assert_eq!(reports.part(4), None);
        assert_eq!(QueueReports::default().own(), None);
    }
}
