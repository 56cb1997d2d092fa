//! One connection of the mesh: how it is made and greeted, and how it carries frames.
//!
//! A connection is a task that reads and writes at once, and ends when either ends, when the other
//! side is silent for too long, or when it is told to. Writing waits for a slow reader for so long
//! and no longer; what is to be written waits in a queue of bounded frames and bytes, and what
//! does not fit is dropped by who gives it. Reading waits for room in the channel of events, so a
//! peer that floods is slowed down by its own connection. Which connections there are to be:
//! `mesh`.

use super::wire::{self, FRAME_BYTES_MAX, HELLO_BYTES_MAX, Hello};
use crate::peers::traffic::Traffic;
use crate::peers::{Event, LinkId};
use crate::tls::{Ends, nobody_in_particular};
use crate::watch::registry::Counter;
use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
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

/// Frames that wait to be written on one connection,
const QUEUED_FRAMES_MAX: usize = 512;
/// and their bytes.
const QUEUED_BYTES_MAX: usize = 1 << 20;
/// What is written at once, in bytes.
const WRITE_BYTES: usize = 64 * 1024;
/// What is read at once, in bytes.
const READ_BYTES: usize = 16 * 1024;

/// How long things may take on a connection.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// For one address to be connected to.
    pub connect: Duration,
    /// For keys and greetings to be exchanged.
    pub handshake: Duration,
    /// After so long without a frame to write, an empty one says that we are there.
    pub beat: Duration,
    /// After so long without a byte to read, the other side is gone.
    pub silence: Duration,
    /// For what is written to be taken by the other side.
    pub write: Duration,
    /// Before an address is tried again for the first time; twice as long each time after that,
    pub again: Duration,
    /// and at most this.
    pub again_max: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
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

/// What protects connections.
#[derive(Clone)]
pub enum Security {
    /// Nothing: this machine alone.
    Plain,
    /// TLS 1.3, both ends of which show who they are.
    Tls(Arc<ArcSwap<Ends>>),
}

/// A stream of bytes, with or without TLS.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection that has been greeted.
pub struct Greeted {
    stream: Box<dyn Stream>,
    /// What was read beyond the greeting.
    rest: BytesMut,
    /// What the other side said.
    pub hello: Hello,
    /// Its address.
    pub address: SocketAddr,
    /// The number that we gave it if we have made it, `None` if the other side has.
    pub dialled: Option<u64>,
}

/// Why there is no connection, for people.
pub type Why = String;

/// Takes a connection that somebody has made.
///
/// # Errors
/// What was wrong with it.
pub async fn accept(
    stream: TcpStream,
    address: SocketAddr,
    security: Security,
    own: Hello,
    timing: Timing,
) -> Result<Greeted, Why> {
    let greeted = async {
        let _ = stream.set_nodelay(true);
        match security {
            Security::Plain if !address.ip().to_canonical().is_loopback() => {
                Err("not of this machine, and there is neither `secret_file` nor `tls`".to_owned())
            }
            Security::Plain => greet(Box::new(stream), address, own, None).await,
            Security::Tls(ends) => {
                let acceptor = TlsAcceptor::from(Arc::clone(&ends.load().server));
                let stream = acceptor.accept(stream).await.map_err(|error| said(&error))?;
                greet(Box::new(stream), address, own, None).await
            }
        }
    };
    let late = || Err("it said too little for too long".to_owned());
    timeout(timing.handshake, greeted).await.unwrap_or_else(|_| late())
}

/// Makes a connection; `own` has its number.
///
/// # Errors
/// Why there is none.
pub async fn dial(
    address: SocketAddr,
    security: Security,
    own: Hello,
    timing: Timing,
) -> Result<Greeted, Why> {
    if matches!(security, Security::Plain) && !address.ip().to_canonical().is_loopback() {
        return Err("beyond this machine it needs `secret_file` or `tls`".to_owned());
    }
    let stream = match timeout(timing.connect, TcpStream::connect(address)).await {
        Ok(connected) => connected.map_err(|error| error.to_string())?,
        Err(_) => return Err("it did not take the connection in time".to_owned()),
    };
    let greeted = async {
        let _ = stream.set_nodelay(true);
        let serial = Some(own.serial);
        match security {
            Security::Plain => greet(Box::new(stream), address, own, serial).await,
            Security::Tls(ends) => {
                let connector = TlsConnector::from(Arc::clone(&ends.load().client));
                let connected = connector.connect(nobody_in_particular(), stream).await;
                let stream = connected.map_err(|error| said(&error))?;
                greet(Box::new(stream), address, own, serial).await
            }
        }
    };
    let late = || Err("it did not greet in time".to_owned());
    timeout(timing.handshake, greeted).await.unwrap_or_else(|_| late())
}

/// Both sides speak at once, so neither waits for the other.
async fn greet(
    mut stream: Box<dyn Stream>,
    address: SocketAddr,
    own: Hello,
    dialled: Option<u64>,
) -> Result<Greeted, Why> {
    stream.write_all(&own.encode()).await.map_err(|error| said(&error))?;
    stream.flush().await.map_err(|error| said(&error))?;
    let mut rest = BytesMut::with_capacity(READ_BYTES);
    loop {
        let taken = wire::take(&mut rest, HELLO_BYTES_MAX);
        // Whatever is longer than a greeting is none.
        if let Some(frame) = taken.map_err(|_| wire::Fault::Foreign.to_string())? {
            let hello = Hello::decode(&frame).map_err(|fault| fault.to_string())?;
            return Ok(Greeted { stream, rest, hello, address, dialled });
        }
        if stream.read_buf(&mut rest).await.map_err(|error| said(&error))? == 0 {
            return Err("it went away without a greeting".to_owned());
        }
    }
}

/// An error of a stream, as people want it: what TLS says says it best.
fn said(error: &io::Error) -> Why {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(tls) => format!("TLS: {tls}"),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "it went away".to_owned(),
        None => error.to_string(),
    }
}

/// Where frames are put that are to be written.
pub struct Outgoing {
    queue: mpsc::Sender<Bytes>,
    bytes: Arc<AtomicUsize>,
}

/// Where they are taken from.
pub struct Queue {
    queue: mpsc::Receiver<Bytes>,
    bytes: Arc<AtomicUsize>,
}

/// Both ends of a queue of frames.
#[must_use]
pub fn queue() -> (Outgoing, Queue) {
    let (sender, receiver) = mpsc::channel(QUEUED_FRAMES_MAX);
    let bytes = Arc::new(AtomicUsize::new(0));
    (Outgoing { queue: sender, bytes: Arc::clone(&bytes) }, Queue { queue: receiver, bytes })
}

impl Outgoing {
    /// Puts a frame into the queue; says whether it had room.
    #[must_use]
    pub fn put(&self, frame: Bytes) -> bool {
        let length = frame.len();
        if length > FRAME_BYTES_MAX || self.bytes.load(Relaxed) + length > QUEUED_BYTES_MAX {
            return false;
        }
        self.bytes.fetch_add(length, Relaxed);
        let put = self.queue.try_send(frame).is_ok();
        if !put {
            self.bytes.fetch_sub(length, Relaxed);
        }
        put
    }
}

impl Queue {
    fn taken(&self, frame: &Bytes) {
        self.bytes.fetch_sub(frame.len(), Relaxed);
    }
}

/// What a connection works with.
pub struct Carrier {
    /// What it is called.
    pub link: LinkId,
    /// Who hears what is read.
    pub events: mpsc::Sender<Event>,
    /// What is to be written.
    pub queue: Queue,
    /// Something or nothing comes when it is to end.
    pub close: oneshot::Receiver<Why>,
    /// How long things may take.
    pub timing: Timing,
    /// What passes.
    pub traffic: Traffic,
}

impl Carrier {
    /// Carries frames both ways until one of many things ends it; says which.
    pub async fn carry(self, greeted: Greeted) -> Why {
        let Carrier { link, events, queue, close, timing, traffic } = self;
        let Greeted { stream, rest, .. } = greeted;
        let (reader, writer) = tokio::io::split(stream);
        tokio::select! {
            why = read(reader, rest, (link, events), timing, traffic.read) => why,
            why = write(writer, queue, timing, traffic.written) => why,
            why = close => why.unwrap_or_else(|_| "we end".to_owned()),
        }
    }
}

async fn read(
    mut reader: ReadHalf<Box<dyn Stream>>,
    mut buffer: BytesMut,
    (link, events): (LinkId, mpsc::Sender<Event>),
    timing: Timing,
    bytes: Counter,
) -> Why {
    loop {
        loop {
            match wire::take(&mut buffer, FRAME_BYTES_MAX) {
                Ok(None) => break,
                Ok(Some(frame)) if frame.is_empty() => {}
                Ok(Some(frame)) => {
                    if events.send(Event::Frame { link, bytes: frame }).await.is_err() {
                        return "nobody listens".to_owned();
                    }
                }
                Err(fault) => return fault.to_string(),
            }
        }
        buffer.reserve(READ_BYTES);
        match timeout(timing.silence, reader.read_buf(&mut buffer)).await {
            Ok(Ok(0)) => return "it has closed the connection".to_owned(),
            Ok(Ok(count)) => bytes.increment(count as u64),
            Ok(Err(error)) => return said(&error),
            Err(_) => return format!("not a word for {:?}", timing.silence),
        }
    }
}

async fn write(
    mut writer: WriteHalf<Box<dyn Stream>>,
    mut queue: Queue,
    timing: Timing,
    bytes: Counter,
) -> Why {
    let mut buffer = BytesMut::new();
    loop {
        buffer.clear();
        match timeout(timing.beat, queue.queue.recv()).await {
            Ok(None) => return "we end".to_owned(),
            Ok(Some(frame)) => {
                queue.taken(&frame);
                wire::put(&mut buffer, &frame);
            }
            Err(_) => wire::put(&mut buffer, b""),
        }
        while buffer.len() < WRITE_BYTES
            && let Ok(frame) = queue.queue.try_recv()
        {
            queue.taken(&frame);
            wire::put(&mut buffer, &frame);
        }
        bytes.increment(buffer.len() as u64);
        let written = async {
            writer.write_all(&buffer).await?;
            writer.flush().await
        };
        match timeout(timing.write, written).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return said(&error),
            Err(_) => return format!("it has read nothing for {:?}", timing.write),
        }
    }
}
