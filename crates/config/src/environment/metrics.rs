//! The variables about metrics: StatsD and Prometheus.
//!
//! The reference's mogrifiers become rules that rename metrics in `statsd`, in the order of their
//! list; the reference tries them in no fixed order. How a variable is read: `environment`.

use super::{EnvironmentReader, VariableForm, list};
use crate::tree::{YamlNode, YamlValue};

impl EnvironmentReader<'_> {
    /// Sets the sections `statsd` and `prometheus`.
    pub(super) fn figures(&mut self) {
        let silent = self.truth("DISABLE_STATS", false);
        let dog = self.truth("USE_DOG_STATSD", false);
        if (self.truth("USE_STATSD", true) || dog) && !silent {
            self.statsd(dog);
        }
        if self.truth("USE_PROMETHEUS", false) && !silent {
            let address = self.text_or("PROMETHEUS_ADDR", ":9090");
            self.set("ratelimit.prometheus.listen", "PROMETHEUS_ADDR", address);
            let plain = [
                ("PROMETHEUS_PATH", "path", VariableForm::Text),
                ("PROMETHEUS_MAPPER_YAML", "mapper", VariableForm::Text),
            ];
            self.plain("ratelimit.prometheus", &plain);
        }
    }

    fn statsd(&mut self, dog: bool) {
        let host = self.text_or("STATSD_HOST", "localhost");
        let address = format!("{host}:{}", self.text_or("STATSD_PORT", "8125"));
        self.set("ratelimit.statsd.address", "STATSD_HOST:STATSD_PORT", address);
        let udp = dog || self.text("STATSD_PROTOCOL").as_deref() == Some("udp");
        self.put("ratelimit.statsd.udp", YamlNode::text(udp.to_string()));
        self.put("ratelimit.statsd.dogstatsd", YamlNode::text(dog.to_string()));
        let every = ("STATS_FLUSH_INTERVAL", "every", VariableForm::Duration);
        self.plain("ratelimit.statsd", &[every]);
        let tags = list(&self.text_or("EXTRA_TAGS", ""), str::to_owned);
        self.put("ratelimit.statsd.tags", tags);
        if dog {
            let rename = self.mogrifiers();
            self.put("ratelimit.statsd.rename", rename);
        }
    }

    fn mogrifiers(&mut self) -> YamlNode {
        let listed = self.text_or("USE_DOG_STATSD_MOGRIFIERS", "");
        let mut rules = Vec::new();
        for name in listed.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let variable = |part: &str| format!("DOG_STATSD_MOGRIFIER_{name}_{part}");
            let mut rule = YamlNode::map([]);
            for (key, part) in [("match", "PATTERN"), ("name", "NAME")] {
                let variable = variable(part);
                match self.text(&variable) {
                    Some(text) => rule.put(&[key], YamlNode::text(text).from_input(&variable)),
                    None => {
                        self.fault(format!("USE_DOG_STATSD_MOGRIFIERS={name} needs {variable}"));
                    }
                }
            }
            rule.put(&["tags"], list(&self.text_or(&variable("TAGS"), ""), str::to_owned));
            rules.push(rule);
        }
        YamlNode::made(YamlValue::List(rules))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;

    #[test]
    fn mogrifiers_are_other_names_in_the_order_in_which_they_are_listed() {
        let pattern = r"^ratelimit\.service\.rate_limit\.(.*)\.(.*)\.(.*)$";
        let all = [
            ("USE_DOG_STATSD", "true"),
            ("USE_DOG_STATSD_MOGRIFIERS", "FOO, BAR"),
            ("DOG_STATSD_MOGRIFIER_FOO_PATTERN", pattern),
            ("DOG_STATSD_MOGRIFIER_FOO_NAME", "ratelimit.service.rate_limit.$3"),
            ("DOG_STATSD_MOGRIFIER_FOO_TAGS", "domain:$1,descriptor:$2"),
            ("DOG_STATSD_MOGRIFIER_BAR_PATTERN", "x"),
            ("DOG_STATSD_MOGRIFIER_BAR_NAME", "y"),
        ];
        let rename = read(&all).expect("sound").statsd.expect("on").rename;
        let names: Vec<_> =
            rename.iter().flat_map(|one| &one.name).map(ToString::to_string).collect();
        assert_eq!(names, ["ratelimit.service.rate_limit.$3", "y"]);
        assert_eq!((rename[0].tags.len(), rename[1].tags.len()), (2, 0));
        assert!(read(&all[1..]).expect("sound").statsd.expect("on").rename.is_empty());
        let told = read(&all[..3]).expect_err("no name");
        assert!(told.contains("FOO needs DOG_STATSD_MOGRIFIER_FOO_NAME"), "{told}");
        let faulty = [&all[..3], &[("DOG_STATSD_MOGRIFIER_FOO_NAME", "$9")], &all[5..]].concat();
        let told = read(&faulty).expect_err("no such group");
        assert!(told.contains("has no group 9"), "{told}");
    }

    #[test]
    fn prometheus_can_have_a_mapping_file() {
        let all = [("USE_PROMETHEUS", "true"), ("PROMETHEUS_MAPPER_YAML", "/etc/map.yaml")];
        let prometheus = read(&all).expect("sound").prometheus.expect("on");
        assert_eq!(prometheus.mapper, Some("/etc/map.yaml".into()));
        assert_eq!(prometheus.listen.port(), 9090);
    }
}
