//! Sends a request to a backend and awaits the head of the answer.
//!
//! The request is sent again only if no part of an answer has arrived and repeating it does no
//! harm. It goes to the same backend if that backend has not processed it, if the connection was
//! reused and may have been closed in the meantime, or if another request may have ended the
//! connection that both shared. Otherwise, or if that backend is now
//! unreachable, it goes to another one. Which one: `backends.rs`. What is done with the answer:
//! `hold.rs`.

use crate::abort::{self, AbandonedExchange};
use crate::account::RequestAccount;
use crate::backends::connector;
use crate::backends::lease::UpstreamLease;
use crate::backends::{ConnectionNeeds, TriedBackends, UpstreamBackend};
use crate::context::ThreadContext;
use crate::failure::{UpstreamFailure, WireError};
use crate::headers::FieldKinds;
use crate::link::ClientLink;
use crate::wire::request::UpstreamRequest;
use crate::worker::ProxyConfigSnapshot;
use evenkeel_engine::Charge;
use evenkeel_models::affinity::PrefixedPrompt;
use evenkeel_telemetry::counts::BackendFault;
use evenkeel_usage::PromptPrefixes;
use http::Response;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The maximum number of connections tried for one request before it fails.
const ATTEMPTS_MAX: u32 = 5;

/// The head of an answer, and which of its fields may have to be removed.
pub(super) type UpstreamAnswer = (Response<()>, FieldKinds);

/// The parts of the thread and of the request that are needed to ask a backend.
pub(super) struct AskContext<'a> {
    pub(super) thread: &'a Rc<ThreadContext>,
    pub(super) link: &'a ClientLink,
    pub(super) site: &'a ProxyConfigSnapshot,
    pub(super) account: &'a RequestAccount,
    pub(super) needs: ConnectionNeeds,
}

impl AskContext<'_> {
    /// Sends a request to a backend and awaits the head of the answer.
    pub(super) async fn ask(
        &self,
        request: UpstreamRequest<'_>,
    ) -> Result<(UpstreamAnswer, UpstreamLease), UpstreamFailure> {
        let mut tried = TriedBackends::default();
        let (mut lease, mut reused) = self.first_connection(&mut tried).await?;
        lease.wire.begin(request, self.thread);
        for attempt in 1..=ATTEMPTS_MAX {
            let backend = Rc::clone(&lease.backend);
            match self.wait(lease).await {
                Ok(answer) => {
                    backend.note_success();
                    return Ok(answer);
                }
                Err(NoAnswer::Failed(mut failed, _))
                    if attempt < ATTEMPTS_MAX
                        && (reused || failed.wire.was_shared() || failed.wire.is_unprocessed())
                        && failed.wire.may_repeat() =>
                {
                    let again = self.connection_again(&mut tried, &backend);
                    (lease, reused) = Box::pin(again).await?;
                    self.repeat(&mut lease, &mut failed)?;
                }
                Err(NoAnswer::Failed(mut failed, fault))
                    if attempt < ATTEMPTS_MAX
                        && failed.wire.may_repeat()
                        && self.site.backends.has_more(tried) =>
                {
                    backend.note_failure(false, self.thread.now());
                    self.thread.record_failure(
                        self.link,
                        &backend.name,
                        &UpstreamFailure::from(fault),
                    );
                    (lease, reused) = self.first_connection(&mut tried).await?;
                    self.repeat(&mut lease, &mut failed)?;
                }
                Err(ended) => {
                    if !self.link.upload.has_failed() {
                        backend.note_failure(false, self.thread.now());
                    }
                    return Err(ended.failure(self.link).by(&backend.name));
                }
            }
        }
        Err(UpstreamFailure::new(BackendFault::Closed))
    }

    /// Sends the request of the failed `before` again on `lease`.
    fn repeat(
        &self,
        lease: &mut UpstreamLease,
        before: &mut UpstreamLease,
    ) -> Result<(), UpstreamFailure> {
        let begun = lease.wire.repeat(&mut before.wire, self.thread);
        let failure = || UpstreamFailure::new(BackendFault::Closed).by(&lease.backend.name);
        begun.then_some(()).ok_or_else(failure)
    }

    /// Returns a connection to the backend chosen next, or to the next one that is reachable.
    /// Without a connection no request is sent, so trying the next one does no harm. Also returns
    /// whether the connection has been used before.
    async fn first_connection(
        &self,
        tried: &mut TriedBackends,
    ) -> Result<(UpstreamLease, bool), UpstreamFailure> {
        let mut failed = None;
        while let Some(backend) = self.choose(tried) {
            match self.connection(backend).await {
                Ok(found) => return Ok(found),
                Err(failure) => failed = Some(self.unreachable(*tried, backend, failure)),
            }
        }
        Err(failed.unwrap_or(UpstreamFailure::new(BackendFault::Connect)))
    }

    /// Chooses a backend and adds it to `tried`. Returns `None` if all have been tried.
    fn choose(&self, tried: &mut TriedBackends) -> Option<&Rc<UpstreamBackend>> {
        let AskContext { thread, site, .. } = *self;
        let switches = self.needs.switches;
        let Some(bounds) = site.settings.affinity.filter(|_| !switches) else {
            return site.backends.choose(tried, thread.now(), switches);
        };
        let affinity = &thread.room.shared.affinity;
        let hashes = match bounds.lead {
            0 => PromptPrefixes::default(),
            _ => self.account.with_model(|model| model.prefixes()).unwrap_or_default(),
        };
        let prompt = PrefixedPrompt { affinity, hashes, bounds };
        let is_first = tried.is_empty();
        let chosen = site.backends.choose_for(&prompt, tried, thread.now());
        let (backend, choice, forgotten) = chosen?;
        if is_first && hashes != PromptPrefixes::default() {
            thread.watch.proxy.affinity.record(choice.result(), forgotten);
        }
        Some(backend)
    }

    /// Returns a connection to the backend that was asked before, or to another one if it is
    /// unreachable.
    async fn connection_again(
        &self,
        tried: &mut TriedBackends,
        backend: &Rc<UpstreamBackend>,
    ) -> Result<(UpstreamLease, bool), UpstreamFailure> {
        let found = self.connection(backend).await;
        let Err(failure) = found else { return found };
        let failure = self.unreachable(*tried, backend, failure);
        if !self.site.backends.has_more(*tried) {
            return Err(failure);
        }
        self.first_connection(tried).await
    }

    /// Returns a connection to `backend`, and whether it has been used before.
    fn connection(
        &self,
        backend: &Rc<UpstreamBackend>,
    ) -> impl Future<Output = Result<(UpstreamLease, bool), UpstreamFailure>> {
        let AskContext { thread, site, needs, .. } = *self;
        connector::connection(thread, &site.settings, backend, needs)
    }

    /// Counts a failed connection attempt against a backend. Logs it if another backend is tried;
    /// otherwise it is logged with the answer.
    fn unreachable(
        &self,
        tried: TriedBackends,
        backend: &UpstreamBackend,
        failure: UpstreamFailure,
    ) -> UpstreamFailure {
        backend.note_failure(true, self.thread.now());
        if self.site.backends.has_more(tried) {
            self.thread.record_failure(self.link, &backend.name, &failure);
        }
        failure.by(&backend.name)
    }

    /// Waits for the head of the answer to the request on `lease`.
    fn wait(&self, lease: UpstreamLease) -> AnswerWait<'_> {
        let AskContext { thread, link, account, .. } = *self;
        // When a request is sent again, the client may already have sent all of it.
        if !link.upload.runs() {
            link.backend.begin_head(thread.now());
            account.with(Charge::work);
        } else {
            link.backend.begin_sending(lease.wire.stuck());
            account.with(Charge::begin_delivery);
        }
        AnswerWait { lease: Some(lease), asking: self }
    }
}

/// Waits for the head of the answer. If the client disconnects in the meantime, the exchange is
/// handed over to `abort`.
struct AnswerWait<'a> {
    lease: Option<UpstreamLease>,
    asking: &'a AskContext<'a>,
}

enum NoAnswer {
    Late,
    /// An answer that cannot be passed on.
    Unfit,
    Failed(UpstreamLease, WireError),
}

impl NoAnswer {
    fn failure(self, link: &ClientLink) -> UpstreamFailure {
        match self {
            NoAnswer::Late if link.upload.runs() => UpstreamFailure::new(BackendFault::Idle),
            NoAnswer::Late => UpstreamFailure::new(BackendFault::AnswerTimeout),
            NoAnswer::Unfit => UpstreamFailure::new(BackendFault::Protocol),
            NoAnswer::Failed(_, fault) => UpstreamFailure::from(fault),
        }
    }
}

impl Future for AnswerWait<'_> {
    type Output = Result<(UpstreamAnswer, UpstreamLease), NoAnswer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let AskContext { thread, link, account, .. } = *self.asking;
        let Some(lease) = &mut self.lease else { return Poll::Ready(Err(NoAnswer::Late)) };
        let polled = lease.wire.poll_answer(thread, cx);
        if polled.is_pending() && !link.backend.is_late() {
            return Poll::Pending;
        }
        link.backend.end_head();
        let answered = match (polled, self.lease.take()) {
            // The request did not ask for another protocol.
            (Poll::Ready(Ok((head, _))), Some(_))
                if head.status().is_informational() && !link.upgrade.may_switch() =>
            {
                Err(NoAnswer::Unfit)
            }
            (Poll::Ready(Ok(answer)), Some(lease)) => Ok((answer, lease)),
            (Poll::Ready(Err(fault)), Some(lease)) => Err(NoAnswer::Failed(lease, fault)),
            (_, lease) => {
                lease.iter().for_each(|lease| lease.wire.retire_if_silent());
                Err(NoAnswer::Late)
            }
        };
        if answered.is_err() {
            account.with(Charge::rest);
        }
        Poll::Ready(answered)
    }
}

impl Drop for AnswerWait<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.lease.take() {
            self.asking.link.backend.end_head();
            let AskContext { thread, account, .. } = *self.asking;
            abort::run_on(thread, account, AbandonedExchange::Head(lease));
        }
    }
}
