//! One connection of the mesh: how it is made and greeted, and how it carries frames.
//!
//! A connection is a task that reads and writes at the same time. It ends when the peer closes it,
//! when the peer is silent for too long, or when the mesh orders it. Writing waits for a slow
//! reader only for a limited time. Frames to write wait in a queue with a bounded number of frames
//! and bytes, and the sender drops frames that do not fit. Reading waits for room in the channel of
//! events, so a peer that floods this instance is slowed down by its own connection. Which
//! connections exist is decided in `mesh`.

use super::wire::{self, FRAME_BYTES_MAX, HELLO_BYTES_MAX, MeshHello};
use crate::traffic::Traffic;
use crate::{LinkId, TransportEvent};
use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use evenkeel_telemetry::registry::Counter;
use evenkeel_tls::{PeerTlsConfigs, any_peer_name};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The most frames that wait to be written on one connection.
const QUEUED_FRAMES_MAX: usize = 512;
/// The most bytes of frames that wait to be written on one connection.
const QUEUED_BYTES_MAX: usize = 1 << 20;
/// The number of bytes above which no more frames are added to one write.
const WRITE_BYTES: usize = 64 * 1024;
/// The room for one read, in bytes.
const READ_BYTES: usize = 16 * 1024;

#[derive(Clone, Copy, Debug)]
pub struct MeshTimeouts {
    pub connect: Duration,
    /// The timeout for the TLS handshake and the greetings.
    pub handshake: Duration,
    /// After this time without a frame to write, an empty frame shows that this instance is alive.
    pub beat: Duration,
    /// After this time without a received byte, the peer is considered dead.
    pub silence: Duration,
    pub write: Duration,
    /// The pause before an address is tried again. It doubles with each failure.
    pub again: Duration,
    /// The longest pause before an address is tried again.
    pub again_max: Duration,
}

impl Default for MeshTimeouts {
    fn default() -> MeshTimeouts {
        MeshTimeouts {
            connect: Duration::from_secs(3),
            handshake: Duration::from_secs(5),
            beat: Duration::from_secs(5),
            silence: Duration::from_secs(20),
            write: Duration::from_secs(10),
            again: Duration::from_millis(250),
            again_max: Duration::from_secs(15),
        }
    }
}

#[derive(Clone)]
pub enum MeshSecurity {
    /// No protection: only addresses of this machine are allowed.
    Plain,
    /// TLS 1.3 with certificates on both ends.
    Tls(Arc<ArcSwap<PeerTlsConfigs>>),
}

/// A stream of bytes, with or without TLS.
pub trait MeshStream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> MeshStream for T {}

/// A connection on which both sides have greeted.
pub struct GreetedConnection {
    stream: Box<dyn MeshStream>,
    /// The bytes read after the greeting.
    rest: BytesMut,
    pub hello: MeshHello,
    pub address: SocketAddr,
    /// The connection's serial number if this instance made it; `None` if the peer did.
    pub dialled: Option<u64>,
}

/// The reason why a connection failed or ended, for display.
pub type CloseReason = String;

/// Secures and greets an accepted connection.
pub async fn accept(
    stream: TcpStream,
    address: SocketAddr,
    security: MeshSecurity,
    own: MeshHello,
    timing: MeshTimeouts,
) -> Result<GreetedConnection, CloseReason> {
    if matches!(security, MeshSecurity::Plain) && !address.ip().to_canonical().is_loopback() {
        return Err(
            "not from this machine, and neither `secret_file` nor `tls` is configured".into()
        );
    }
    let greeted = async { greet(secure(stream, security, false).await?, address, own, None).await };
    let late = || Err("it sent too little for too long".to_owned());
    timeout(timing.handshake, greeted).await.unwrap_or_else(|_| late())
}

/// Makes a connection, secures and greets it. `own` holds the connection's serial number.
pub async fn dial(
    address: SocketAddr,
    security: MeshSecurity,
    own: MeshHello,
    timing: MeshTimeouts,
) -> Result<GreetedConnection, CloseReason> {
    if matches!(security, MeshSecurity::Plain) && !address.ip().to_canonical().is_loopback() {
        return Err("beyond this machine it needs `secret_file` or `tls`".to_owned());
    }
    let stream = match timeout(timing.connect, TcpStream::connect(address)).await {
        Ok(connected) => connected.map_err(|error| error.to_string())?,
        Err(_) => return Err("it did not accept the connection in time".to_owned()),
    };
    let serial = Some(own.serial);
    let greeted =
        async { greet(secure(stream, security, true).await?, address, own, serial).await };
    let late = || Err("it did not complete the handshake in time".to_owned());
    timeout(timing.handshake, greeted).await.unwrap_or_else(|_| late())
}

/// Adds TLS, as the client of a connection that this instance `dialled` and else as the server.
async fn secure(
    stream: TcpStream,
    security: MeshSecurity,
    dialled: bool,
) -> Result<Box<dyn MeshStream>, CloseReason> {
    let _ = stream.set_nodelay(true);
    let MeshSecurity::Tls(ends) = security else { return Ok(Box::new(stream)) };
    let ends = ends.load_full();
    Ok(if dialled {
        let connector = TlsConnector::from(Arc::clone(&ends.client));
        let connected = connector.connect(any_peer_name(), stream).await;
        Box::new(connected.map_err(|error| said(&error))?)
    } else {
        let accepted = TlsAcceptor::from(Arc::clone(&ends.server)).accept(stream).await;
        Box::new(accepted.map_err(|error| said(&error))?)
    })
}

/// Exchanges the greetings. Both sides send first, so neither waits for the other.
async fn greet(
    mut stream: Box<dyn MeshStream>,
    address: SocketAddr,
    own: MeshHello,
    dialled: Option<u64>,
) -> Result<GreetedConnection, CloseReason> {
    stream.write_all(&own.encode()).await.map_err(|error| said(&error))?;
    stream.flush().await.map_err(|error| said(&error))?;
    let mut rest = BytesMut::with_capacity(READ_BYTES);
    loop {
        let taken = wire::take(&mut rest, HELLO_BYTES_MAX);
        // A frame longer than any greeting is not a greeting.
        if let Some(frame) = taken.map_err(|_| wire::MeshFrameError::Foreign.to_string())? {
            let hello = MeshHello::decode(&frame).map_err(|fault| fault.to_string())?;
            return Ok(GreetedConnection { stream, rest, hello, address, dialled });
        }
        if stream.read_buf(&mut rest).await.map_err(|error| said(&error))? == 0 {
            return Err("it disconnected before the handshake".to_owned());
        }
    }
}

/// An error of a stream, for display. The text of a TLS error is the most useful one.
fn said(error: &io::Error) -> CloseReason {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(tls) => format!("TLS: {tls}"),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "it disconnected".to_owned(),
        None => error.to_string(),
    }
}

/// The end of a connection.
pub struct LinkEnd {
    pub why: CloseReason,
    /// Whether the peer has closed it.
    pub is_gone: bool,
}

impl LinkEnd {
    /// An end for another reason than that the peer has closed the connection.
    fn here(why: impl Into<CloseReason>) -> LinkEnd {
        LinkEnd { why: why.into(), is_gone: false }
    }

    /// An end because of an error. If the peer's process has ended, its system closes the
    /// connection in one of these ways.
    fn of(error: &io::Error) -> LinkEnd {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let is_gone = matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof);
        LinkEnd { why: said(error), is_gone }
    }
}

/// The frames that wait to be written on one connection.
pub struct FrameSender {
    common: FrameLane<mpsc::Sender<Bytes>>,
    urgent: FrameLane<mpsc::Sender<Bytes>>,
}

pub struct FrameReceiver {
    common: FrameLane<mpsc::Receiver<Bytes>>,
    urgent: FrameLane<mpsc::Receiver<Bytes>>,
    /// Whether the first frame has been taken, which no urgent one may overtake.
    has_begun: bool,
}

/// One end of a queue of frames, with the number of bytes in it.
struct FrameLane<T> {
    frames: T,
    bytes: Arc<AtomicUsize>,
}

pub fn queue() -> (FrameSender, FrameReceiver) {
    let ((common, commons), (urgent, urgents)) = (lane(), lane());
    (
        FrameSender { common, urgent },
        FrameReceiver { common: commons, urgent: urgents, has_begun: false },
    )
}

fn lane() -> (FrameLane<mpsc::Sender<Bytes>>, FrameLane<mpsc::Receiver<Bytes>>) {
    let (sender, receiver) = mpsc::channel(QUEUED_FRAMES_MAX);
    let bytes = Arc::new(AtomicUsize::new(0));
    let sender = FrameLane { frames: sender, bytes: Arc::clone(&bytes) };
    (sender, FrameLane { frames: receiver, bytes })
}

impl FrameSender {
    /// Adds a frame to the queue, or to the one of urgent frames. Returns whether there was room.
    #[must_use]
    pub fn put(&self, frame: Bytes, is_urgent: bool) -> bool {
        if is_urgent { self.urgent.put(frame) } else { self.common.put(frame) }
    }
}

impl FrameLane<mpsc::Sender<Bytes>> {
    fn put(&self, frame: Bytes) -> bool {
        let length = frame.len();
        if length > FRAME_BYTES_MAX || self.bytes.load(Relaxed) + length > QUEUED_BYTES_MAX {
            return false;
        }
        self.bytes.fetch_add(length, Relaxed);
        let put = self.frames.try_send(frame).is_ok();
        if !put {
            self.bytes.fetch_sub(length, Relaxed);
        }
        put
    }
}

impl FrameReceiver {
    /// The next frame, urgent ones first; `None` if there will be none.
    async fn next(&mut self) -> Option<Bytes> {
        let (frame, bytes) = tokio::select! {
            biased;
            Some(frame) = self.urgent.frames.recv(), if self.has_begun => {
                (frame, &self.urgent.bytes)
            }
            frame = self.common.frames.recv() => (frame?, &self.common.bytes),
        };
        self.has_begun = true;
        bytes.fetch_sub(frame.len(), Relaxed);
        Some(frame)
    }

    /// The next frame if one waits, of a connection that has begun.
    fn try_next(&mut self) -> Option<Bytes> {
        let lanes = [&mut self.urgent, &mut self.common];
        lanes.into_iter().find_map(|lane| {
            let frame = lane.frames.try_recv().ok()?;
            lane.bytes.fetch_sub(frame.len(), Relaxed);
            Some(frame)
        })
    }
}

/// The parts that a connection task works with.
pub struct MeshCarrier {
    pub link: LinkId,
    pub events: mpsc::Sender<TransportEvent>,
    pub queue: FrameReceiver,
    /// The order to end, with a reason. A dropped sender ends the connection too.
    pub close: oneshot::Receiver<CloseReason>,
    pub timing: MeshTimeouts,
    pub traffic: Traffic,
}

impl MeshCarrier {
    /// Carries frames in both directions until the connection ends. Returns the reason.
    pub async fn carry(self, greeted: GreetedConnection) -> LinkEnd {
        let MeshCarrier { link, events, queue, close, timing, traffic } = self;
        let GreetedConnection { stream, rest, .. } = greeted;
        let (reader, writer) = tokio::io::split(stream);
        tokio::select! {
            end = read(reader, rest, (link, events), timing, traffic.read) => end,
            end = write(writer, queue, timing, traffic.written) => end,
            why = close => LinkEnd::here(why.unwrap_or_else(|_| "we end".to_owned())),
        }
    }
}

async fn read(
    mut reader: ReadHalf<Box<dyn MeshStream>>,
    mut buffer: BytesMut,
    (link, events): (LinkId, mpsc::Sender<TransportEvent>),
    timing: MeshTimeouts,
    bytes: Counter,
) -> LinkEnd {
    loop {
        loop {
            match wire::take(&mut buffer, FRAME_BYTES_MAX) {
                Ok(None) => break,
                Ok(Some(frame)) if frame.is_empty() => {}
                Ok(Some(frame)) => {
                    if events.send(TransportEvent::Frame { link, bytes: frame }).await.is_err() {
                        return LinkEnd::here("nobody listens");
                    }
                }
                Err(fault) => return LinkEnd::here(fault.to_string()),
            }
        }
        buffer.reserve(READ_BYTES);
        match timeout(timing.silence, reader.read_buf(&mut buffer)).await {
            Ok(Ok(0)) => {
                let why = "it has closed the connection".to_owned();
                return LinkEnd { why, is_gone: true };
            }
            Ok(Ok(count)) => bytes.increment(count as u64),
            Ok(Err(error)) => return LinkEnd::of(&error),
            Err(_) => return LinkEnd::here(format!("it sent nothing for {:?}", timing.silence)),
        }
    }
}

async fn write(
    mut writer: WriteHalf<Box<dyn MeshStream>>,
    mut queue: FrameReceiver,
    timing: MeshTimeouts,
    bytes: Counter,
) -> LinkEnd {
    let mut buffer = BytesMut::new();
    loop {
        buffer.clear();
        match timeout(timing.beat, queue.next()).await {
            Ok(None) => return LinkEnd::here("we end"),
            Ok(Some(frame)) => wire::put(&mut buffer, &frame),
            Err(_) => wire::put(&mut buffer, b""),
        }
        while queue.has_begun
            && buffer.len() < WRITE_BYTES
            && let Some(frame) = queue.try_next()
        {
            wire::put(&mut buffer, &frame);
        }
        bytes.increment(buffer.len() as u64);
        let written = async {
            writer.write_all(&buffer).await?;
            writer.flush().await
        };
        match timeout(timing.write, written).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return LinkEnd::of(&error),
            Err(_) => return LinkEnd::here(format!("it has read nothing for {:?}", timing.write)),
        }
    }
}
