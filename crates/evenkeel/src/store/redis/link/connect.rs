//! Makes one connection to one server: address, TLS, login, database, and that it is the master.
//!
//! Passwords and certificates are read anew each time, so what is changed is taken over when a
//! connection is made. What is asked on it, and when another is made: `link`.

use super::bounded::{Bounded, Excess};
use crate::config::secret::{self, SecretFault};
use crate::config::settings::store::{End, Layout, Login, Server, StorePlace};
use crate::tls;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, RedisError, Value};
use rustls::pki_types::ServerName;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

/// Requests that wait to be written; more wait with those who ask, for no longer than they may.
const WAITING_MAX: usize = 1_024;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It was not there in time.
    #[error("no connection within {0:?}")]
    Late(Duration),
    /// The system says so.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The password cannot be read.
    #[error("{0}")]
    Secret(#[from] SecretFault),
    /// A certificate cannot be used.
    #[error("{0}")]
    Tls(#[from] tls::pem::Fault),
    /// The name is none that a certificate could be for.
    #[error("{0} is no name that a certificate is for")]
    Name(String),
    /// The server says so.
    #[error("{0}")]
    Server(#[from] RedisError),
    /// The server sends what nobody has asked for.
    #[error("{0}")]
    Excess(#[from] Excess),
    /// No sentinel knows the master.
    #[error("no sentinel says who `{0}` is; the last said: {1}")]
    Unknown(String, String),
    /// It is a replica.
    #[error("it is no master: its role is {0}")]
    Role(String),
    /// It does not do what it is asked.
    #[error("{0}")]
    Unable(String),
}

/// A connection. Questions of all tasks of a thread go over it, one behind the other.
pub struct Wire {
    redis: MultiplexedConnection,
    driver: AbortHandle,
    /// The server has sent too much.
    exceeded: Arc<AtomicBool>,
    /// Answers that somebody has ceased to wait for and that have not come.
    pub overdue: Cell<usize>,
    /// Why it cannot be used any more.
    pub broken: RefCell<Option<String>>,
    /// Told when it cannot be used any more.
    pub news: Rc<Notify>,
}

impl Wire {
    /// To ask with.
    pub fn redis(&self) -> MultiplexedConnection {
        self.redis.clone()
    }

    /// Whether a question would be answered at once, as far as is known.
    pub fn may_be_asked(&self) -> bool {
        self.overdue.get() == 0 && self.broken.borrow().is_none()
    }

    /// Why there was no answer, of which those who wait hear no more than that there is none.
    pub fn fault(&self, why: RedisError) -> Fault {
        fault(&self.exceeded, why)
    }

    /// Why the connection has ended.
    pub fn end(&self) -> String {
        let exceeded = self.exceeded.load(Relaxed).then(|| Excess.to_string());
        let why = exceeded.or_else(|| self.broken.borrow().clone());
        why.unwrap_or_else(|| "the connection was closed".to_owned())
    }

    /// It is not to be used any more.
    pub fn break_off(&self, why: String) {
        self.broken.borrow_mut().get_or_insert(why);
        self.news.notify_one();
    }

    /// Closes it, whoever waits: a server that has stopped would else be waited for.
    pub fn close(&self) {
        self.driver.abort();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.close();
    }
}

/// Connects to `server`; `name` is the master that sentinels are asked for.
///
/// # Errors
/// [`Fault`].
pub async fn connect(place: &StorePlace, server: &Server, within: Duration) -> Result<Wire, Fault> {
    let connected = tokio::time::timeout(within, open(place, server, true));
    connected.await.map_err(|_| Fault::Late(within))?
}

/// Connects to the master that the sentinels name.
///
/// # Errors
/// [`Fault`].
pub async fn connect_to_master(place: &StorePlace, within: Duration) -> Result<Wire, Fault> {
    let Layout::Sentinel(name) = &place.layout else {
        return connect(place, &place.servers[0], within).await;
    };
    let mut last = String::new();
    for sentinel in &place.servers {
        match tokio::time::timeout(within, ask_sentinel(place, sentinel, name)).await {
            Ok(Ok(master)) => {
                let wire = connect(place, &master, within).await?;
                let asked = tokio::time::timeout(within, role(&wire));
                asked.await.map_err(|_| Fault::Late(within))??;
                return Ok(wire);
            }
            Ok(Err(why)) => last = format!("{}: {why}", sentinel.end),
            Err(_) => last = format!("{}: {}", sentinel.end, Fault::Late(within)),
        }
    }
    Err(Fault::Unknown(name.clone(), last))
}

async fn ask_sentinel(place: &StorePlace, sentinel: &Server, name: &str) -> Result<Server, Fault> {
    let wire = open(place, sentinel, false).await?;
    let question = redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(name).take();
    let answer = question.query_async(&mut wire.redis()).await;
    let answer: Option<(String, u16)> = answer.map_err(|why| wire.fault(why))?;
    let (host, port) =
        answer.ok_or_else(|| Fault::Unknown(name.to_owned(), "unknown".to_owned()))?;
    let tls = matches!(sentinel.end, End::Tcp { tls: true, .. });
    let database = sentinel.database;
    Ok(Server { end: End::Tcp { host, port, tls }, login: None, database })
}

/// A master that was replaced is its successor's replica when it comes back.
async fn role(wire: &Wire) -> Result<(), Fault> {
    let answer = redis::cmd("ROLE").query_async(&mut wire.redis()).await;
    let answer: Value = answer.map_err(|why| wire.fault(why))?;
    let word = match answer {
        Value::Array(values) => values.into_iter().next(),
        _ => None,
    };
    match word.and_then(|word| redis::from_redis_value::<String>(word).ok()) {
        Some(word) if word == "master" => Ok(()),
        word => Err(Fault::Role(word.unwrap_or_default())),
    }
}

/// `data`: it is a server that counts, not a sentinel.
async fn open(place: &StorePlace, server: &Server, data: bool) -> Result<Wire, Fault> {
    let login = match &server.login {
        Some(login) => Some(login.clone()),
        None if data => login(place)?,
        None => None,
    };
    let mut info =
        RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
    if data {
        info = info.set_db(server.database.into());
    }
    if let Some(login) = login {
        info = info.set_password(login.password);
        info = login.user.into_iter().fold(info, RedisConnectionInfo::set_username);
    }
    match &server.end {
        End::Unix(path) => greet(&info, UnixStream::connect(path).await?).await,
        End::Tcp { host, port, tls } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            if !tls {
                return greet(&info, stream).await;
            }
            let config = tls::store::config(&place.tls)?;
            let name = ServerName::try_from(host.clone());
            let name = name.map_err(|_| Fault::Name(host.clone()))?;
            let stream = TlsConnector::from(Arc::clone(&config)).connect(name, stream).await?;
            greet(&info, stream).await
        }
    }
}

fn login(place: &StorePlace) -> Result<Option<Login>, SecretFault> {
    match &place.credentials_file {
        Some(path) => secret::credentials(path).map(|text| Some(Login::parse(&text))),
        None => Ok(place.login.clone()),
    }
}

async fn greet<S>(info: &RedisConnectionInfo, stream: S) -> Result<Wire, Fault>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_pipeline_buffer_size(WAITING_MAX);
    let (stream, exceeded) = Bounded::new(stream);
    let made = MultiplexedConnection::new_with_config(info, stream, config).await;
    let (redis, driver) = made.map_err(|why| fault(&exceeded, why))?;
    let news = Rc::new(Notify::new());
    let ended = Rc::clone(&news);
    let task = tokio::task::spawn_local(async move {
        driver.await;
        ended.notify_one();
    });
    Ok(Wire {
        redis,
        driver: task.abort_handle(),
        exceeded,
        overdue: Cell::new(0),
        broken: RefCell::new(None),
        news,
    })
}

fn fault(exceeded: &AtomicBool, why: RedisError) -> Fault {
    if exceeded.load(Relaxed) { Excess.into() } else { why.into() }
}
