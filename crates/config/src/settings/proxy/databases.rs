//! The `proxy.databases` section: files that say which AS number or country an address has.
//!
//! The files are read by `identity::networks`, which also follows their changes.

use crate::keys::ConfigKey;
use crate::reader::settings;
use evenkeel_core::fact::{ClientFact, FactSet};
use std::path::PathBuf;

settings! {
    /// The databases of networks.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct DatabaseSettings from keys(section), TABLE = "proxy.databases";

    /// File with the AS numbers of networks. Limits and conditions with `asn` need it.
    pub asn: Option<PathBuf>, ASN: ConfigKey<PathBuf> = ConfigKey::path("asn")
        .example("/var/lib/evenkeel/ip2asn-combined.tsv.gz").default_note("none");
    /// File with the countries of networks. Limits and conditions with `country` need it.
    pub country: Option<PathBuf>, COUNTRY: ConfigKey<PathBuf> = ConfigKey::path("country")
        .example("/var/lib/evenkeel/country.mmdb").default_note("none");
}

impl DatabaseSettings {
    /// The errors of limits and conditions that name `facts` without a file that has them. `user`
    /// names one that does.
    pub(crate) fn missing(
        &self,
        facts: FactSet,
        user: impl Fn(ClientFact) -> String,
    ) -> Vec<String> {
        let files = [(ClientFact::Asn, &self.asn), (ClientFact::Country, &self.country)];
        let missing =
            files.into_iter().filter(|(fact, file)| facts.contains(*fact) && file.is_none());
        let error = |(fact, _)| {
            let user = user(fact);
            format!(
                "{user} needs the `{fact}` of clients, and no file has it; add \
                 `databases: {{{fact}: FILE}}` to `proxy`"
            )
        };
        missing.map(error).collect()
    }
}

/// All files about networks that a configuration names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkFileSettings {
    /// The database of AS numbers.
    pub asn: Option<PathBuf>,
    /// The database of countries.
    pub country: Option<PathBuf>,
    /// The address lists.
    pub lists: Vec<PathBuf>,
}

impl NetworkFileSettings {
    /// Whether there is no such file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == NetworkFileSettings::default()
    }
}
