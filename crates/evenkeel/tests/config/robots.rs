//! The section `proxy.robots`: what is read, and every fault of it.

use super::{faults, good};

const ALL: &str = "proxy:
  signed_for: [example.com, \"*.example.com\"]
  robots:
    - name: googlebot
      user_agent: \"*Googlebot*\"
      host: [\"*.googlebot.com\", \"*.google.com\"]
      ip_file: [/etc/robots/googlebot.json]
    - {name: signer, keys: /etc/robots/signer.json}
    - {name: agent, user_agent: [\"a*\", b], directory: \"Keys.Example:8443\"}
";

#[test]
fn robots_are_read_and_shown() {
    let config = good(ALL);
    let proxy = config.settings.proxy.expect("a proxy");
    let robots = &proxy.robots;
    assert!(robots.sign() && robots.signed_for.len() == 2);
    assert_eq!(robots.list[0].host.len(), 2);
    assert_eq!(robots.list[2].directory.as_deref(), Some("keys.example:8443"));
    let files: Vec<_> = robots.files().iter().map(|path| path.display().to_string()).collect();
    assert_eq!(files, ["/etc/robots/googlebot.json", "/etc/robots/signer.json"]);
    assert_eq!(proxy.hosts.robots.len(), 3);
    assert!(proxy.hosts.needs_names() && !proxy.hosts.needs_all_names());
    assert_eq!(good(&config.native).settings.proxy.as_ref(), Some(&proxy));
}

#[test]
fn each_of_these_robots_is_faulty() {
    let of = |robots: &str| faults(&format!("proxy:\n  robots: [{robots}]\n"));
    for (robots, expected) in [
        ("{host: x.org}", "a robot needs `name`"),
        ("{name: a}", "a robot needs a proof: `host`, `ip_file`, `keys` or `directory`"),
        ("{name: a b, host: x.org}", "a name has 1 to 64 letters"),
        ("{name: a, host: x.org}, {name: a, host: y.org}", "two robots are named `a`"),
        ("{name: a, host: \"*\"}", "must be a host name, or `*.` and a domain"),
        ("{name: a, keys: /k}", "need `signed_for`: the host names of this site"),
        ("{name: a, directory: \"https://x.org\"}", "without https://"),
        ("{name: a, host: x.org, agent: b}", "unknown key"),
        ("{name: a, host: x.org, user_agent: \"re:(\"}", "user_agent"),
    ] {
        let told = of(robots);
        assert!(told.contains(expected), "{robots}: {told}");
    }
    let many: Vec<_> = (0..65).map(|n| format!("{{name: r{n}, host: x.org}}")).collect();
    assert!(of(&many.join(", ")).contains("more than 64 robots; remove some"));
    let unused = faults("proxy:\n  signed_for: x.org\n");
    assert!(unused.contains("is used only for robots with `keys` or `directory`"), "{unused}");
}
