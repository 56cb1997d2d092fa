//! An upload of which the backend has a part.
//!
//! Envoy shows it if it sends bodies piece by piece. If no piece arrives for a while, the backend
//! can do nothing for the request, so others may use its slot, as in the proxy. The next
//! piece passes when it is the turn of the request again. The cost of such time is in
//! `engine/src/charge/delivery.rs`.

use super::super::answer::EnvoyAnswer;
use super::{Exchange, RequestStage, Waiting};
use evenkeel_engine::{Charge, QueueAdmission, QueueTurn};
use tonic::Status;

/// How much of a request the backend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadStage {
    /// All of it, or nothing; or Envoy does not show it.
    Whole,
    /// Its head, and perhaps a part of its body.
    Partial,
    /// The same, and others may use its slot.
    Stalled,
}

impl UploadStage {
    /// Whether the slot is given to others if nothing arrives.
    pub fn may_stall(self) -> bool {
        self == UploadStage::Partial
    }
}

impl Exchange {
    /// The backend has got the head of the request. `follows`: Envoy will show the rest.
    pub(super) fn begin_upload(&mut self, follows: bool) {
        let Some(charge) = &mut self.charge else { return };
        if follows {
            self.upload = UploadStage::Partial;
            charge.begin_delivery();
        } else {
            charge.work();
        }
    }

    /// No piece of the body has arrived for a while.
    pub(super) fn stall(&mut self) {
        // A slot that has to be kept is not asked for again before the next piece.
        self.upload = UploadStage::Stalled;
        self.charge.iter_mut().for_each(|charge| _ = charge.stall(false));
    }

    /// Lets a piece of the body of this length go to the backend with this answer; `ends`: it is
    /// the last one. If others use the slot, it waits for its turn.
    pub(super) fn pass_upload(&mut self, bytes: usize, ends: bool, answer: EnvoyAnswer) {
        let stalled = self.upload == UploadStage::Stalled;
        let is_open = self.upload != UploadStage::Whole && self.stage == RequestStage::Running;
        let Some(charge) = self.charge.as_mut().filter(|_| is_open) else {
            return self.send(answer);
        };
        self.upload = if ends { UploadStage::Whole } else { UploadStage::Partial };
        charge.note_delivered(bytes);
        if ends {
            charge.finish_delivery();
        }
        match stalled.then(|| charge.enter()) {
            Some(QueueAdmission::Waits(turn)) => self.ask_for_time(Waiting::Resume(turn, answer)),
            Some(QueueAdmission::Refused(refusal)) => self.refuse(&refusal, None),
            Some(QueueAdmission::Room) | None => self.send_upload(answer),
        }
    }

    fn send_upload(&mut self, answer: EnvoyAnswer) {
        if self.upload == UploadStage::Whole {
            self.charge.iter_mut().for_each(Charge::work);
        }
        self.send(answer);
    }

    /// Waits for the turn of an upload that others have used the slot of.
    pub(super) async fn resume(
        &mut self,
        turn: QueueTurn,
        answer: EnvoyAnswer,
    ) -> Result<Option<()>, Status> {
        let Some(turned) = self.unless_gone(turn).await? else { return Ok(None) };
        match self.charge.as_mut().map(|charge| charge.accept_turn(turned)) {
            Some(Err(refusal)) => self.refuse(&refusal, None),
            Some(Ok(())) | None => self.send_upload(answer),
        }
        Ok(Some(()))
    }
}
