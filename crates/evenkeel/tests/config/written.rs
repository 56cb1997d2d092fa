//! What a file may have besides keys and values: variables of the environment, keys that are
//! ignored, and the default limits among others.

use super::{faults, good};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::units::Cost;
use evenkeel_testing::evenkeel;
use std::fs;

/// A variable that no environment has.
const NONE: &str = "EVENKEEL_TEST_NOT_SET";

#[test]
fn variables_are_expanded_and_shown_as_values() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("evenkeel.yaml");
    let text = format!(
        "# ${{{NONE}}}\nproxy:\n  backend: http://${{EVENKEEL_TEST_HOST}}:81\n  \
         listen: ${{{NONE}:-127.0.0.1:82}}\n  exempt: cookie:$${{odd}}x\n"
    );
    let text = text.replace("$${odd}x", "odd");
    fs::write(&path, text).expect("written");
    let mut command = evenkeel!();
    let command = command.args(["show", "--config"]).arg(&path);
    let output = command.env("EVENKEEL_TEST_HOST", "10.0.0.5").output().expect("it runs");
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("backend: [http://10.0.0.5:81]"), "{shown}");
    assert!(shown.contains("listen: [127.0.0.1:82]"), "{shown}");
}

#[test]
fn a_variable_that_is_missing_is_one_fault_at_its_place() {
    let text = format!("proxy:\n  backend: http://${{{NONE}}}\n  cpus: x\n");
    let told = faults(&text);
    let lines: Vec<&str> = told.lines().collect();
    let missing = format!(
        "t.yaml:2:12: the environment variable `{NONE}` is not set; set it, or write \
         `${{{NONE}:-default}}`"
    );
    assert_eq!(lines[0], missing);
    assert!(lines[1].starts_with("t.yaml:3:9: `cpus` is `x`") && lines.len() == 2, "{told}");
    let told = faults(&format!("proxy: {{listen: ${{{NONE}}}}}"));
    assert!(told.contains("within brackets `${NAME}` needs quotes"), "{told}");
    // An address that is not set leaves no door open.
    let told = faults(&format!("proxy: {{listen: \"${{{NONE}}}\"}}"));
    assert!(told.contains("is not set") && told.lines().count() == 1, "{told}");
}

#[test]
fn text_that_looks_like_a_variable_stays_what_it_is() {
    let text = "proxy: {limits: [{name: a, by: all, rate: 1/s, when: {path: \"/$${x}\"}}]}";
    let config = good(text);
    assert!(config.native.contains("/$${x}"), "{}", config.native);
    assert_eq!(good(&config.native).settings, config.settings);
}

#[test]
fn keys_that_begin_with_x_are_ignored() {
    let text = "\
x-office: &office [192.0.2.0/24, 198.51.100.7]
proxy:
  x-note: {anything: [goes]}
  trusted_proxies: *office
  limits:
    - {name: a, by: all, rate: 1/s, x-why: the old limit}
";
    let config = good(text);
    assert_eq!(config.settings.proxy.as_ref().expect("open").trusted_proxies.len(), 2);
    assert!(!config.native.contains("x-"), "{}", config.native);
    assert!(faults("proxy: {xnote: 1}").contains("unknown key `xnote`"));
    // A condition with nothing else is empty, which would mean all requests.
    let deny = "proxy: {limits: [{name: a, action: deny, when: {x-a: 1}}]}";
    assert!(faults(deny).contains("would refuse every request"));
}

#[test]
fn default_limits_can_be_kept() {
    let names = |text: &str| -> Vec<String> {
        let config = good(text);
        assert_eq!(good(&config.native).settings, config.settings, "{}", config.native);
        let limits = config.settings.proxy.expect("open").limits;
        limits.iter().map(|limit| limit.name.to_string()).collect()
    };
    let all = ["ip", "net24", "net16"];
    assert_eq!(names("proxy: {limits: default}"), all);
    assert_eq!(names("proxy: {limits: [default]}"), all);
    let login = "{name: logins, by: ip/32, rate: 5/m}";
    let before = names(&format!("proxy: {{limits: [{login}, default]}}"));
    assert_eq!(before, ["logins", "ip", "net24", "net16"]);
    let after = names(&format!("proxy: {{limits: [default, {login}]}}"));
    assert_eq!(after, ["ip", "net24", "net16", "logins"]);
    let models = names("proxy: {preset: openai, limits: [default]}");
    assert_eq!(models, ["tenant", "ip"]);
    let told = faults("proxy: {limits: [{name: ip, by: all, share: 1%}, default]}");
    assert_eq!(told, "t.yaml:1:50: two limits are named `ip`; rename one");
    let told = faults("proxy:\n  limits: [default, {name: a, by: all, share: x}]");
    assert!(told.starts_with("t.yaml:2:47: `share` is `x`") && told.lines().count() == 1, "{told}");
    assert!(faults("proxy: {limits: [defaults]}").contains("must be a section"));
}

/// As at Cloudflare and Envoy: five a minute are five at once, then one every twelve seconds.
#[test]
fn a_rate_without_a_burst_has_its_own_number() {
    for (rate, burst) in [("5/m", 5), ("10/s", 10), ("1/5s", 1), ("0.5/s", 1), ("10 per 2min", 10)]
    {
        let text = format!("proxy: {{limits: [{{name: a, by: all, rate: {rate}}}]}}");
        let limits = good(&text).settings.proxy.expect("open").limits;
        let Algorithm::Debt(debt) = &limits[0].algorithm else { panic!("a rate") };
        assert_eq!(debt.burst(), Cost::hits(burst), "{rate}");
        let shown = good(&format!("line: {{limits: [{{prefix: a, rate: {rate}}}]}}")).native;
        assert!(shown.contains(&format!("burst: {burst}\n")), "{rate}: {shown}");
    }
}
