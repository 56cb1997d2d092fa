//! A gRPC server on tonic with fair turns for its callers: `cargo run --example tonic`.
//!
//! A caller is named by the metadata `x-tenant`; calls without it pass. The service is that of
//! health checks, because it needs no generated code here. A refused call ends with `UNAVAILABLE`.

use evenkeel_fair_queue::{FairQueue, FairQueueLayer, FairQueueSettings};
use std::future::Future;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::server::health_reporter;

/// Serves the connections of `listener` behind `queue`.
pub fn serve(
    listener: TcpListener,
    queue: FairQueue,
) -> impl Future<Output = Result<(), tonic::transport::Error>> {
    let tenant = |request: &Request<Body>| request.headers().get("x-tenant").cloned();
    let (_, health) = health_reporter();
    Server::builder()
        .layer(FairQueueLayer::new(queue, tenant))
        .add_service(health)
        .serve_with_incoming(TcpIncoming::from(listener))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let queue = FairQueue::new(FairQueueSettings::default());
    let listener = TcpListener::bind("127.0.0.1:50051").await?;
    Ok(serve(listener, queue).await?)
}

/// A real client on a real socket.
#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_fair_queue::Slots;
    use tonic::transport::Endpoint;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;

    #[tokio::test]
    async fn tonic_serves_and_refuses() {
        let settings =
            FairQueueSettings { slots: Slots::Fixed(1), len_max: 1, ..Default::default() };
        let queue = FairQueue::new(settings);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(serve(listener, queue.clone()));
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let client = HealthClient::new(endpoint.connect().await.expect("a connection"));
        let check = |tenant: &'static str| {
            let mut client = client.clone();
            let mut request = tonic::Request::new(HealthCheckRequest::default());
            request.metadata_mut().insert("x-tenant", tenant.parse().expect("a value"));
            async move { client.check(request).await.map(|_| ()).map_err(|status| status.code()) }
        };
        assert_eq!(check("a").await, Ok(()));
        let held = queue.enter(b"b", "work").await.expect("a slot");
        let waits = tokio::spawn(check("a"));
        while queue.stats().waiting == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(check("a").await, Err(tonic::Code::Unavailable));
        drop(held);
        assert_eq!(waits.await.expect("a response"), Ok(()));
        assert_eq!(queue.stats().running, 0);
    }
}
