//! The answer's head: charge for it, hold it, and prepare it for the client.
//!
//! The engine decides until when it is held. The body after it is in `download.rs`, and the bytes
//! after an answer that switches protocols in `front/tunnel.rs`.

use super::ask::UpstreamAnswer;
use crate::account::RequestAccount;
use crate::backends::lease::UpstreamLease;
use crate::connect::ConnectHandshake;
use crate::context::ThreadContext;
use crate::context::settings::ThreadSettings;
use crate::download::{AnswerBody, AnswerDownload};
use crate::failure::UpstreamFailure;
use crate::headers::{self, FieldKinds};
use crate::link::ClientLink;
use crate::room::TunnelRoom;
use crate::visitor::Visitor;
use evenkeel_core::units::Time;
use evenkeel_engine::Charge;
use evenkeel_telemetry::counts::BackendFault;
use http::{Response, StatusCode};
use std::rc::Rc;

/// A CONNECT of HTTP/2 that the backend may accept, with the room that its tunnel needs.
pub(super) type PendingConnect = Option<Box<(ConnectHandshake, TunnelRoom)>>;

/// The backend has switched protocols without having read the request.
#[derive(Debug, thiserror::Error)]
#[error("sec-websocket-accept of the response does not match sec-websocket-key")]
struct WebsocketKeyError;

pub(super) struct ArrivedAnswer {
    pub(super) answer: UpstreamAnswer,
    pub(super) lease: UpstreamLease,
    pub(super) account: RequestAccount,
    pub(super) connect: PendingConnect,
    pub(super) visitor: Option<Box<Visitor>>,
}

/// Charges for the answer and holds it until the time that the engine set, before its head goes
/// out.
pub(super) async fn held(
    thread: &Rc<ThreadContext>,
    link: &Rc<ClientLink>,
    settings: &ThreadSettings,
    arrived: ArrivedAnswer,
) -> Result<Response<AnswerBody>, UpstreamFailure> {
    let ArrivedAnswer { answer: (answer, found), lease, account, connect, visitor } = arrived;
    let (mut head, ()) = answer.into_parts();
    let until = account.head(head.status, &mut head.headers, settings.keep_cost_header);
    if let (Some(visitor), Some(room)) = (visitor, &settings.waiting_room)
        && let Some(pass) = account.with(|charge| charge.new_pass()).flatten()
    {
        visitor.set_pass(&room.load(), &mut head.headers, pass, thread.clock.now());
    }
    let of_model = account.with_model(|_| ()).is_some();
    if settings.headers || of_model {
        let quotas = account.with(|charge| charge.quotas()).unwrap_or_default();
        super::tell_quotas(settings, of_model, &mut head.headers, &quotas);
    }
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let wire = (lease, connect);
        return Box::pin(switched(thread, link, (head, found), wire, (account, until))).await;
    }
    if connect.is_some() && head.status.is_success() {
        // The backend has not switched; to a CONNECT, a success status would say that it has (RFC
        // 9113, 8.5).
        head.status = StatusCode::NOT_IMPLEMENTED;
    }
    // No tunnel follows, so its room is free although the answer may take long.
    drop(connect);
    let is_stream = evenkeel_models::is_stream(&head.headers);
    if is_stream && !settings.charge_streams {
        account.with(Charge::leave);
        thread.set_aside(link);
    }
    let mut download = AnswerDownload::new(lease, link, thread, account);
    download.ends_with_client = of_model || (is_stream && settings.charge_streams);
    download.is_model_stream = of_model && is_stream;
    headers::answer(head.status, &mut head.headers, found);
    if let Some(until) = until {
        let over = tokio::time::sleep_until(thread.clock.instant(until));
        Box::pin(download.hold(over)).await?;
    }
    Ok(Response::from_parts(head, download.release().await?))
}

/// Handles an answer that switches protocols. The bytes that follow are not HTTP and not charged.
/// They are carried unchanged once the client has the head.
async fn switched(
    thread: &ThreadContext,
    link: &ClientLink,
    (mut head, found): (http::response::Parts, FieldKinds),
    (lease, connect): (UpstreamLease, PendingConnect),
    (account, until): (RequestAccount, Option<Time>),
) -> Result<Response<AnswerBody>, UpstreamFailure> {
    account.with(Charge::leave);
    headers::answer_upgrade(&mut head.headers, found);
    if let Some(connect) = &connect
        && !connect.0.answer(&mut head.status, &mut head.headers)
    {
        return Err(
            UpstreamFailure::of(BackendFault::Protocol, WebsocketKeyError).by(&lease.backend.name)
        );
    }
    if let Some(until) = until {
        Box::pin(tokio::time::sleep_until(thread.clock.instant(until))).await;
    }
    account.settle();
    if let Some(backend) = lease.wire.into_tunnel() {
        link.upgrade.finish(backend, connect.map(|connect| connect.1));
    }
    Ok(Response::from_parts(head, AnswerBody::Whole(None)))
}
