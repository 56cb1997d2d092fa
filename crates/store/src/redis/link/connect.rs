//! Makes one connection to one server: address, TLS, login, database, and for sentinels the check
//! that the server is the master.
//!
//! Passwords and certificates are read anew for each connection, so changes apply to the next one.
//! The commands on a connection, and when it is replaced: `link`.

use super::bounded::{BoundedStream, ExcessBytesError};
use evenkeel_config::secret::{self, SecretError};
use evenkeel_config::settings::store::{
    StoreAddress, StoreLayout, StoreLogin, StoreServer, StoreServers,
};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, FromRedisValue, Pipeline, ProtocolVersion, RedisConnectionInfo,
    RedisError, Value,
};
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
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// The most requests that wait to be written on a connection. Further ones wait at their callers,
/// up to their deadlines.
const WAITING_REQUESTS_MAX: usize = 1_024;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum RedisConnectError {
    /// The timeout has expired.
    #[error("no connection within {0:?}")]
    Late(Duration),
    /// An error of the system.
    #[error("{0}")]
    System(#[from] io::Error),
    /// The password cannot be read.
    #[error("{0}")]
    Secret(#[from] SecretError),
    /// A certificate cannot be used.
    #[error("{0}")]
    Tls(#[from] evenkeel_tls::pem::TlsFileError),
    /// The host name cannot be the name of a certificate.
    #[error("{0} is not a name that a certificate can contain")]
    Name(String),
    /// An error that the server or the client library reports.
    #[error("{0}")]
    Server(#[from] RedisError),
    /// The server has sent too many bytes.
    #[error("{0}")]
    Excess(#[from] ExcessBytesError),
    /// No sentinel knows the master of this name. Holds the last error too.
    #[error("no sentinel knows the address of `{0}`; the last one reported: {1}")]
    Unknown(String, String),
    /// The server is not a master but has this role.
    #[error("it is not a master: its role is {0}")]
    Role(String),
    /// The server cannot run the commands that a store needs.
    #[error("{0}")]
    Unable(String),
}

/// A connection. All tasks of a thread share it, and their questions are pipelined.
pub struct RedisConnection {
    redis: MultiplexedConnection,
    driver: AbortHandle,
    /// Set when the server has sent too many bytes.
    exceeded: Arc<AtomicBool>,
    /// The number of answers that have not arrived by their deadline.
    pub overdue: Cell<usize>,
    /// The reason why the connection is no longer usable.
    pub broken: RefCell<Option<String>>,
    /// Notified when the connection is no longer usable.
    pub news: Rc<Notify>,
}

impl RedisConnection {
    /// Sends the commands of a pipeline and waits for all answers.
    ///
    /// # Errors
    /// [`RedisConnectError`], if the connection is lost.
    pub async fn send(&self, pipeline: &Pipeline) -> Result<Vec<Value>, RedisConnectError> {
        let answers = self.redis.clone().send_packed_commands(pipeline, 0, pipeline.len()).await;
        answers.map_err(|why| fault(&self.exceeded, why))
    }

    /// Sends a command and reads its answer.
    async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisConnectError> {
        let answer = command.query_async(&mut self.redis.clone()).await;
        answer.map_err(|why| fault(&self.exceeded, why))
    }

    /// Whether a question would be answered without delay, as far as is known.
    pub fn may_be_asked(&self) -> bool {
        self.overdue.get() == 0 && self.broken.borrow().is_none() && !self.driver.is_finished()
    }

    /// The reason why the connection has ended.
    pub fn end(&self) -> String {
        let exceeded = self.exceeded.load(Relaxed).then(|| ExcessBytesError.to_string());
        let why = exceeded.or_else(|| self.broken.borrow().clone());
        why.unwrap_or_else(|| "the connection was closed".to_owned())
    }

    /// Marks the connection as unusable for this reason.
    pub fn break_off(&self, why: String) {
        self.broken.borrow_mut().get_or_insert(why);
        self.news.notify_one();
    }

    /// Closes the connection, even if requests wait for answers: a server that has stopped would
    /// never answer them.
    pub fn close(&self) {
        self.driver.abort();
    }
}

impl Drop for RedisConnection {
    fn drop(&mut self) {
        self.close();
    }
}

/// Waits for a step of connecting.
///
/// # Errors
/// [`RedisConnectError::Late`], and the errors of `step`.
pub async fn in_time<T>(
    within: Duration,
    step: impl Future<Output = Result<T, RedisConnectError>>,
) -> Result<T, RedisConnectError> {
    timeout(within, step).await.map_err(|_| RedisConnectError::Late(within))?
}

/// Connects to `server`, within a timeout.
///
/// # Errors
/// [`RedisConnectError`].
pub async fn connect(
    place: &StoreServers,
    server: &StoreServer,
    within: Duration,
) -> Result<RedisConnection, RedisConnectError> {
    in_time(within, open(place, server, true)).await
}

/// Connects to the master that the sentinels name. With a layout without sentinels, connects to the
/// first server.
///
/// # Errors
/// [`RedisConnectError`].
pub async fn connect_to_master(
    place: &StoreServers,
    within: Duration,
) -> Result<RedisConnection, RedisConnectError> {
    let StoreLayout::Sentinel(name) = &place.layout else {
        return connect(place, &place.servers[0], within).await;
    };
    let mut last = String::new();
    for sentinel in &place.servers {
        match in_time(within, ask_sentinel(place, sentinel, name)).await {
            Ok(master) => {
                let wire = connect(place, &master, within).await?;
                in_time(within, role(&wire)).await?;
                return Ok(wire);
            }
            Err(why) => last = format!("{}: {why}", sentinel.end),
        }
    }
    Err(RedisConnectError::Unknown(name.clone(), last))
}

async fn ask_sentinel(
    place: &StoreServers,
    sentinel: &StoreServer,
    name: &str,
) -> Result<StoreServer, RedisConnectError> {
    let wire = open(place, sentinel, false).await?;
    let question = redis::cmd("SENTINEL").arg("get-master-addr-by-name").arg(name).take();
    let answer: Option<(String, u16)> = wire.query(&question).await?;
    let (host, port) =
        answer.ok_or_else(|| RedisConnectError::Unknown(name.to_owned(), "unknown".to_owned()))?;
    let tls = matches!(sentinel.end, StoreAddress::Tcp { tls: true, .. });
    let database = sentinel.database;
    Ok(StoreServer { end: StoreAddress::Tcp { host, port, tls }, login: None, database })
}

/// Checks that the server is a master. A former master comes back as a replica of its successor.
async fn role(wire: &RedisConnection) -> Result<(), RedisConnectError> {
    let answer: Value = wire.query(&redis::cmd("ROLE")).await?;
    let word = match answer {
        Value::Array(values) => values.into_iter().next(),
        _ => None,
    };
    match word.and_then(|word| redis::from_redis_value::<String>(word).ok()) {
        Some(word) if word == "master" => Ok(()),
        word => Err(RedisConnectError::Role(word.unwrap_or_default())),
    }
}

/// Opens a connection. `data` is true for a server that counts, and false for a sentinel.
async fn open(
    place: &StoreServers,
    server: &StoreServer,
    data: bool,
) -> Result<RedisConnection, RedisConnectError> {
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
        StoreAddress::Unix(path) => greet(&info, UnixStream::connect(path).await?).await,
        StoreAddress::Tcp { host, port, tls } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            if !tls {
                return greet(&info, stream).await;
            }
            let config = evenkeel_tls::store::config(&place.tls)?;
            let name = ServerName::try_from(host.clone());
            let name = name.map_err(|_| RedisConnectError::Name(host.clone()))?;
            let stream = TlsConnector::from(Arc::clone(&config)).connect(name, stream).await?;
            greet(&info, stream).await
        }
    }
}

fn login(place: &StoreServers) -> Result<Option<StoreLogin>, SecretError> {
    match &place.credentials_file {
        Some(path) => secret::credentials(path).map(|text| Some(StoreLogin::parse(&text))),
        None => Ok(place.login.clone()),
    }
}

async fn greet<S>(
    info: &RedisConnectionInfo,
    stream: S,
) -> Result<RedisConnection, RedisConnectError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(None)
        .set_pipeline_buffer_size(WAITING_REQUESTS_MAX);
    let (stream, exceeded) = BoundedStream::new(stream);
    let made = MultiplexedConnection::new_with_config(info, stream, config).await;
    let (redis, driver) = made.map_err(|why| fault(&exceeded, why))?;
    let news = Rc::new(Notify::new());
    let ended = Rc::clone(&news);
    let task = tokio::task::spawn_local(async move {
        driver.await;
        ended.notify_one();
    });
    Ok(RedisConnection {
        redis,
        driver: task.abort_handle(),
        exceeded,
        overdue: Cell::new(0),
        broken: RefCell::new(None),
        news,
    })
}

/// The cause of an error on a connection: too many bytes, which the library reports only as a lost
/// connection, or the error itself.
fn fault(exceeded: &AtomicBool, why: RedisError) -> RedisConnectError {
    if exceeded.load(Relaxed) { ExcessBytesError.into() } else { why.into() }
}
