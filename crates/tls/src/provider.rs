//! The cryptography of all TLS connections: aws-lc.
//!
//! Each connection names it, because another crate in the process may have set a default.

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use std::sync::Arc;

/// Makes aws-lc the default cryptography for crates that do not select one. An earlier choice in
/// this process is kept.
pub fn install() {
    let _ = aws_lc_rs::default_provider().install_default();
}

pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
