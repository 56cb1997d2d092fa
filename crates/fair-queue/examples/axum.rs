//! An axum service with fair turns for its tenants: `cargo run --example axum`.
//!
//! A tenant is named by its API key. Requests without a key pass, for health checks.

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::http::Request;
use axum::routing::get;
use evenkeel_fair_queue::{FairQueue, FairQueueLayer, FairQueueSettings};
use tokio::net::TcpListener;

/// The service behind `queue`.
pub fn service(queue: FairQueue) -> Router {
    let tenant = |request: &Request<Body>| request.headers().get("x-api-key").cloned();
    Router::new()
        .route("/reports/{number}", get(report))
        .route("/health", get(|| async { "fine" }))
        .layer(FairQueueLayer::new(queue, tenant))
}

async fn report(Path(number): Path<u32>) -> String {
    format!("report {number}")
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let queue = FairQueue::new(FairQueueSettings::default());
    let listener = TcpListener::bind("127.0.0.1:8080").await?;
    axum::serve(listener, service(queue)).await
}

/// A real client on a real socket.
#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use evenkeel_fair_queue::Slots;
    use http_body_util::{BodyExt, Empty};
    use hyper::client::conn::http1::{SendRequest, handshake};
    use hyper_util::rt::TokioIo;
    use tokio::net::TcpStream;

    async fn get(
        to: &mut SendRequest<Empty<Bytes>>,
        path: &str,
        key: Option<&str>,
    ) -> (u16, String) {
        let request = Request::get(path).header("host", "test");
        let request = key.iter().fold(request, |request, key| request.header("x-api-key", *key));
        let request = request.body(Empty::new()).expect("a request");
        let response = to.send_request(request).await.expect("a response");
        let status = response.status();
        assert_eq!(response.headers().contains_key("retry-after"), status.is_server_error());
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status.as_u16(), String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn axum_serves_waits_and_refuses() {
        let settings =
            FairQueueSettings { slots: Slots::Fixed(1), len_max: 1, ..Default::default() };
        let queue = FairQueue::new(settings);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(axum::serve(listener, service(queue.clone())).into_future());
        let client = async || {
            let stream = TcpStream::connect(address).await.expect("a connection");
            let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("a connection");
            tokio::spawn(connection);
            sender
        };
        let (mut one, mut other) = (client().await, client().await);
        assert_eq!(get(&mut one, "/reports/7", Some("a")).await, (200, "report 7".to_owned()));
        assert_eq!(queue.stats().running, 0);

        let held = queue.enter(b"b", "work").await.expect("a slot");
        let waits = tokio::spawn(async move { get(&mut one, "/reports/8", Some("a")).await });
        while queue.stats().waiting == 0 {
            tokio::task::yield_now().await;
        }
        // The queue is full of requests of `a`.
        assert_eq!(get(&mut other, "/reports/9", Some("a")).await, (503, String::new()));
        assert_eq!(get(&mut other, "/health", None).await, (200, "fine".to_owned()));
        drop(held);
        assert_eq!(waits.await.expect("a response"), (200, "report 8".to_owned()));
        assert_eq!((queue.stats().running, queue.stats().refused), (0, 1));
    }
}
