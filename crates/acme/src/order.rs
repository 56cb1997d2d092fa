//! One order of a certificate (RFC 8555), from the account to the saved file.
//!
//! For each name the authority asks for a file under `/.well-known/acme-challenge/` (HTTP-01), or
//! for a certificate in a TLS handshake (TLS-ALPN-01). The proxy shows them from `OpenChallenges`.
//! When to order: `plan`.

use crate::AcmeError;
use crate::files::{AcmeFolder, StoredAccount};
use crate::http::AuthorityClient;
use evenkeel_config::settings::tls::AcmeChallenge;
use evenkeel_core::units::Time;
use evenkeel_tls::challenges::OpenChallenges;
use evenkeel_tls::pem;
use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, Identifier, KeyAuthorization, NewAccount,
    NewOrder, Order, OrderStatus, Problem, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, KeyPair};
use std::sync::Arc;
use std::time::Duration;

/// How long the authority may take to check the names, and then to issue.
const STEP_TIME: Duration = Duration::from_secs(90);
/// The interval of the first questions about the state of an order.
const FIRST_POLL: Duration = Duration::from_millis(500);

const UNKNOWN_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";
/// The beginning of all types of errors of this protocol.
const ERROR_TYPES: &str = "urn:ietf:params:acme:error:";

/// The challenges of one order, taken back when it ends.
struct OrderChallenges<'c> {
    all: &'c OpenChallenges,
    /// Tokens, or names of certificates.
    put: Vec<String>,
}

impl Drop for OrderChallenges<'_> {
    fn drop(&mut self) {
        self.put.iter().for_each(|one| self.all.remove(one));
    }
}

impl OrderChallenges<'_> {
    /// Shows what the authority is to find for a name.
    fn show(
        &mut self,
        challenge: AcmeChallenge,
        (name, token): (&str, &str),
        proof: &KeyAuthorization,
    ) -> Result<(), AcmeError> {
        let key = match challenge {
            AcmeChallenge::Http01 => {
                self.all.put(token, proof.as_str());
                token
            }
            AcmeChallenge::TlsAlpn01 => {
                let (cert, key) = check_certificate(name, proof)?;
                self.all.put_certificate(name, cert, key).map_err(pem::TlsFileError::Library)?;
                name
            }
        };
        self.put.push(key.to_owned());
        Ok(())
    }
}

/// The certificate by which an authority recognises the account (RFC 8737, 3), and its key.
fn check_certificate(
    name: &str,
    proof: &KeyAuthorization,
) -> Result<(Vec<u8>, Vec<u8>), AcmeError> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(proof.digest().as_ref())];
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.der().to_vec(), key.serialize_der()))
}

/// A challenge by the names of the protocol.
fn kind(challenge: AcmeChallenge) -> (ChallengeType, &'static str) {
    match challenge {
        AcmeChallenge::Http01 => (ChallengeType::Http01, "http-01"),
        AcmeChallenge::TlsAlpn01 => (ChallengeType::TlsAlpn01, "tls-alpn-01"),
    }
}

/// Orders a certificate and saves it. `now` returns the time.
///
/// # Errors
/// The reason, with what to do where it is known.
pub async fn order(
    folder: &AcmeFolder,
    challenges: &Arc<OpenChallenges>,
    now: impl Fn() -> Time,
) -> Result<(), AcmeError> {
    let account = account(folder).await?;
    let domains = &folder.settings.domains;
    let names: Vec<Identifier> = domains.iter().cloned().map(Identifier::Dns).collect();
    let order = account.new_order(&NewOrder::new(&names)).await;
    if matches!(&order, Err(Error::Api(why)) if why.r#type.as_deref() == Some(UNKNOWN_ACCOUNT)) {
        folder.forget_account();
    }
    let mut order = order.map_err(refused)?;
    let mut shown = OrderChallenges { all: challenges, put: Vec::new() };
    let challenge = folder.settings.challenge;
    answer_challenges(&mut order, challenge, &mut shown).await?;
    let policy = RetryPolicy::new().initial_delay(FIRST_POLL).timeout(STEP_TIME);
    match order.poll_ready(&policy).await {
        Ok(OrderStatus::Ready | OrderStatus::Valid) => {}
        Ok(_) => return Err(failed_check(&mut order, challenge, None).await),
        Err(error) => return Err(failed_check(&mut order, challenge, Some(error)).await),
    }
    let key = order.finalize().await.map_err(refused)?;
    let chain = order.poll_certificate(&policy).await.map_err(refused)?;
    folder.save_certificate(&chain, &key, now())
}

/// The account of the folder, or a new one.
async fn account(folder: &AcmeFolder) -> Result<Account, AcmeError> {
    let settings = &folder.settings;
    let client = || Box::new(AuthorityClient { ca: settings.ca.clone() });
    let contact = settings.email.as_ref().map(|email| format!("mailto:{email}"));
    let contact: Vec<&str> = contact.iter().map(String::as_str).collect();
    if let Some(mut stored) = folder.account()? {
        let again = serde_json::to_value(&stored.credentials).and_then(serde_json::from_value);
        let again = again.map_err(|error| refused(Error::Json(error)))?;
        let builder = Account::builder_with_http(client());
        let account = builder.from_credentials(again).await.map_err(refused)?;
        if stored.email != settings.email {
            account.update_contacts(&contact).await.map_err(refused)?;
            stored.email.clone_from(&settings.email);
            folder.save_account(&stored)?;
        }
        return Ok(account);
    }
    let new = NewAccount {
        contact: &contact,
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let builder = Account::builder_with_http(client());
    let made = builder.create(&new, settings.directory.clone(), None).await;
    let (account, credentials) = made.map_err(refused)?;
    let (directory, email) = (settings.directory.clone(), settings.email.clone());
    folder.save_account(&StoredAccount { directory, email, credentials })?;
    Ok(account)
}

/// Shows the challenge of each name that the authority has not checked yet, and asks it to check.
async fn answer_challenges(
    order: &mut Order,
    wanted: AcmeChallenge,
    shown: &mut OrderChallenges<'_>,
) -> Result<(), AcmeError> {
    let (kind, word) = kind(wanted);
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization.map_err(refused)?;
        if authorization.status != AuthorizationStatus::Pending {
            continue;
        }
        let name = authorization.identifier().to_string();
        let Some(mut challenge) = authorization.challenge(kind.clone()) else {
            return Err(AcmeError::NoChallenge { name, challenge: word });
        };
        shown.show(wanted, (&name, &challenge.token), &challenge.key_authorization())?;
        challenge.set_ready().await.map_err(refused)?;
    }
    Ok(())
}

/// Why the authority has not accepted a name; `error` if all are accepted.
async fn failed_check(
    order: &mut Order,
    challenge: AcmeChallenge,
    error: Option<Error>,
) -> AcmeError {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let Ok(mut authorization) = authorization else { continue };
        // The state is that of before the check.
        let Ok(state) = authorization.refresh().await else { continue };
        let failed = state.challenges.iter().find_map(|challenge| challenge.error.clone());
        if let Some(problem) = failed {
            let name = state.identifier().to_string();
            return AcmeError::Check {
                advice: advice(&problem, challenge, &name),
                why: text(&problem),
                name,
            };
        }
    }
    let why = "it gives no reason".to_owned();
    error.map_or(AcmeError::Refused { why }, refused)
}

/// What to do about a name that was not accepted.
fn advice(problem: &Problem, challenge: AcmeChallenge, name: &str) -> String {
    let (port, listener) = match challenge {
        AcmeChallenge::Http01 => (80, "without TLS"),
        AcmeChallenge::TlsAlpn01 => (443, "with TLS"),
    };
    let kind = problem.r#type.as_deref().unwrap_or_default();
    match kind.strip_prefix(ERROR_TYPES).unwrap_or(kind) {
        "dns" => format!("; let DNS name the address of this server for {name}"),
        "connection" => format!(
            "; the authority connects to port {port} of {name}: open it, let DNS name the address \
             of this server, and let a listener {listener} have the port"
        ),
        "unauthorized" | "incorrectResponse" => format!(
            "; another server answers for {name}: DNS points elsewhere, or another program has \
             port {port}"
        ),
        "caa" => format!("; the CAA record of {name} does not allow this authority"),
        _ => String::new(),
    }
}

/// Describes an error of the authority or of the way there.
fn refused(error: Error) -> AcmeError {
    match error {
        Error::Api(problem) => {
            let kind = problem.r#type.as_deref().unwrap_or_default();
            let is_limit = kind.ends_with(":rateLimited");
            let more = problem.subproblems.iter().map(|one| format!("; {one}"));
            let why = text(&problem) + &more.collect::<String>();
            if is_limit { AcmeError::RateLimited { why } } else { AcmeError::Refused { why } }
        }
        Error::Timeout(_) => AcmeError::Refused {
            why: format!("it has not finished within {} s", STEP_TIME.as_secs()),
        },
        other => AcmeError::Unreachable { why: chain(&other) },
    }
}

fn text(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or("no type");
    let kind = kind.strip_prefix(ERROR_TYPES).unwrap_or(kind);
    // It is text of another server, and goes into the log.
    let detail = problem.detail.as_deref().unwrap_or("no detail");
    let detail: String = detail.chars().filter(|c| !c.is_control()).take(500).collect();
    format!("{detail} ({kind})")
}

/// An error with what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}
