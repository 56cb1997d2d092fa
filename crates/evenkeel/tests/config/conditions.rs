//! `when`, `exempt`, `groups` and `action: deny`: the requests that a rule applies to.

use super::good;
use evenkeel_config::source::{ConfigChange, ConfigSource};
use evenkeel_config::{StartProblems, check, parse};
use evenkeel_core::bucket::Algorithm;
use evenkeel_core::condition::patterns::{PathPatterns, Patterns};
use evenkeel_core::condition::{AddressSet, Clause, Condition, Truth, Values};
use evenkeel_core::fact::ClientFact;
use evenkeel_core::limit::KeyPart;
use evenkeel_core::units::{Cost, Nanos};
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

pub fn limit(when: &str) -> String {
    format!("proxy: {{limits: [{{name: a, by: ip/32, share: 10%, when: {when}}}]}}")
}

fn faults(text: &str) -> String {
    parse("t.yaml", text.as_bytes(), 4.0).expect_err(text).to_string()
}

/// The limit's condition, read beside a file with AS numbers, and a queue that needs no facts.
fn when(text: &str) -> Condition {
    let text =
        limit(text).replace("proxy: {", "proxy: {databases: {asn: asn.tsv}, queue: {known: off}, ");
    let proxy = good(&text).settings.proxy.expect("open");
    let condition = proxy.limits[0].when.clone();
    assert_eq!(proxy.facts, condition.facts());
    condition
}

fn values(patterns: &[&str], absent: bool) -> Values {
    Values { absent, patterns: Patterns::new(patterns).expect("patterns") }
}

#[test]
fn a_condition_may_say_what_a_request_does_not_have() {
    let cookie = Condition::from(Clause::has_cookie("session"));
    assert_eq!(when("{not: {cookie: session}}"), Clause::Not(cookie.clone()).into());
    let twice = Condition::from(Clause::Not(cookie));
    assert_eq!(when("{not: {not: {cookie: session}}}"), Clause::Not(twice).into());
    let told = faults(&limit("{not: {}}"));
    assert!(told.contains("`not` is empty"), "{told}");
}

#[test]
fn every_attribute_takes_a_value_a_list_and_patterns() {
    let agents = values(&["*GPTBot*", "re:^curl/[0-9]"], true);
    let net: IpAddr = "192.0.2.0".parse().expect("an address");
    for (text, clause) in [
        ("{user_agent: ['*GPTBot*', 're:^curl/[0-9]', absent]}", {
            Clause::Header("user-agent".into(), agents)
        }),
        ("{header: {Accept-Language: absent}}", {
            Clause::Header("accept-language".into(), Values::absent())
        }),
        ("{header: {accept: ['*html*', '*json*']}}", {
            Clause::Header("accept".into(), values(&["*html*", "*json*"], false))
        }),
        ("{query: {action: '*'}}", Clause::Query("action".into(), values(&["*"], false))),
        ("{query: diff}", Clause::Query("diff".into(), Values::present())),
        ("{cookie: {lang: de}}", Clause::Cookie("lang".into(), values(&["de"], false))),
        ("{ip: [192.0.2.0/24]}", Clause::Address(AddressSet::new([(net, 24)]))),
        ("{ip_file: [/a.json, b.txt]}", Clause::Listed(vec!["/a.json".into(), "b.txt".into()])),
        ("{asn: [64500, AS64501]}", {
            Clause::Fact(ClientFact::Asn, values(&["AS64500", "AS64501"], false))
        }),
        ("{ja4: 't13d*'}", Clause::Fact(ClientFact::Ja4, values(&["t13d*"], false))),
        ("{bot: absent}", Clause::Fact(ClientFact::Bot, Values::absent())),
        ("{path: '/*.php'}", Clause::Path(PathPatterns::new(["/*.php"]).expect("a path"))),
        ("{path: '*.php'}", Clause::Path(PathPatterns::new(["/*.php"]).expect("a path"))),
        ("{path: '*/wp-login.php'}", {
            Clause::Path(PathPatterns::new(["*/wp-login.php"]).expect("a path"))
        }),
        ("{method: [get, 'PROP*', 're:^OWN$']}", {
            Clause::Method(Patterns::new(["get", "PROP*", "re:^OWN$"]).expect("patterns"))
        }),
        ("{path: /wp-json/*}", Clause::Path(PathPatterns::new(["/wp-json"]).expect("a path"))),
        ("{any: [{method: POST}, {cookie: a}]}", {
            let post = Clause::Method(Patterns::new(["POST"]).expect("a pattern"));
            Clause::Any(vec![post.into(), Clause::has_cookie("a").into()])
        }),
    ] {
        assert_eq!(when(text), clause.into(), "{text}");
    }
    let facts = when("{any: [{ja4: a}, {not: {asn: 1}}]}").facts();
    assert!(facts.contains(ClientFact::Ja4) && facts.contains(ClientFact::Asn));
    assert!(!facts.contains(ClientFact::Bot));
}

#[test]
fn what_cannot_be_compared_is_a_fault_that_names_the_fix() {
    for (text, told) in [
        ("{header: 'x-a: b'}", "a name has 1 to 64 letters"),
        ("{header: {}}", "1:66: `header` is empty; remove the key, or write a value"),
        ("{header: {'a b': c}}", "`a b`: a name has 1 to 64"),
        ("{user_agent: 're:('}", "not a regular expression: unclosed group"),
        ("{query: 'a=b'}", "a value is written as `query: {NAME: PATTERN}`"),
        ("{path: '/a?b=c'}", "has no query; write `query: {NAME: \"*\"}`"),
        ("{rtt: relay}", "direct, relayed or absent"),
        ("{fetch: [agrees, unlike]}", "agrees, differs, other or absent"),
        ("{path: .php}", "a path begins with / or *, as in /login or *.php"),
        ("{user_agent: *GPTBot*}", "text that begins with `*` needs quotes, as in \"*bot*\""),
        ("{path: [/a, *.php]}", "text that begins with `*` needs quotes"),
        ("{path: \"re:\\.php$\"}", "needs single quotes, as in 're:\\.php$'"),
        ("{asn: example}", "the number of an autonomous system, such as AS64500"),
        ("{group: robots}", "names no group: `robots`; `groups` names none before it"),
        ("{any: [{}]}", "`any` has an empty condition; remove it"),
        ("{useragent: a}", "did you mean `user_agent`?"),
        ("{or: [{path: /}]}", "there is no `or`; write `any` with a list of conditions"),
        ("{method: GTE}", "`method` is `GTE`: no known method; did you mean GET?"),
        ("{method: 'GET, POST'}", "no known method; a method of your own is a pattern"),
        ("{country: Germany}", "`country` is `Germany`: a country has two letters, such as DE"),
        ("{country: uk}", "`country` is `uk`: no country; the United Kingdom is GB"),
    ] {
        let seen = faults(&limit(text));
        assert!(seen.contains(told) && seen.lines().count() == 1, "{text}: {seen}");
    }
}

/// A list whose entries are commented out would otherwise be a condition that holds for everybody.
#[test]
fn a_key_without_a_value_is_a_fault() {
    let of =
        |key: &str, place: &str| format!("{place}: `{key}` is empty; remove the key, or write");
    let keys = [
        "method",
        "path",
        "query",
        "vhost",
        "user_agent",
        "header",
        "cookie",
        "ip",
        "ip_file",
        "asn",
        "country",
        "ja4",
        "h2",
        "rtt",
        "fetch",
        "bot",
        "impostor",
        "group",
        "not",
        "any",
    ];
    for key in keys {
        let is_section = ["query", "header", "cookie", "not", "any"].contains(&key);
        let section = is_section.then_some(("{}", 60 + key.len()));
        let list = (key != "not").then_some(("[]", 60 + key.len()));
        for (empty, place) in [("", 58)].into_iter().chain(list).chain(section) {
            let seen = faults(&limit(&format!("{{{key}: {empty}}}")));
            let told = of(key, &format!("t.yaml:1:{place}"));
            assert!(seen.starts_with(&told) && seen.lines().count() == 1, "{key}: {empty}: {seen}");
        }
    }
    let deny = |when: &str| format!("proxy: {{limits: [{{name: a, action: deny, when: {when}}}]}}");
    for when in ["{user_agent: []}", "{not: {ip: []}}", "{any: [{path: /, cookie: }]}"] {
        let seen = faults(&deny(when));
        assert!(seen.contains("` is empty; remove the key") && seen.lines().count() == 1, "{seen}");
    }
    for text in ["{header: {accept: []}}", "{not: {query: {diff: }}}", "{user_agent: [a, ]}"] {
        let seen = faults(&deny(&text.replace("[a, ]", "[a, null]")));
        assert!(seen.contains("` has an empty entry; remove it"), "{seen}");
    }
    let gate = "proxy: {limits: []}\ngatekeeper: {when: }".to_owned();
    for text in [limit(""), limit("{}"), gate] {
        let seen = faults(&text);
        assert!(seen.contains("`when` is empty; remove the key, or write a condition"), "{seen}");
    }
    let group = "groups:\n  bad:\n    user_agent:\n    # - '*bot*'\nproxy: {limits: []}";
    assert!(faults(group).starts_with("t.yaml:3:5: `user_agent` is empty;"), "{}", faults(group));
    let robot = "proxy: {robots: [{name: a, user_agent: [], host: '*.example.com'}], limits: []}";
    assert!(faults(robot).contains("`user_agent` is empty;"), "{}", faults(robot));
}

#[test]
fn a_single_condition_in_place_of_several_has_one_key() {
    let seen = faults(&limit("{any: {path: /x, query: diff}}"));
    let told = "`any` is a list of conditions, and this is one condition, all keys of which must \
                match; write a list: `any: [{path: ...}, {query: ...}]`";
    assert!(seen.contains(told) && seen.lines().count() == 1, "{seen}");
    let one = Condition::from(Clause::has_cookie("a"));
    assert_eq!(when("{any: {cookie: a}}"), Clause::Any(vec![one]).into());
}

#[test]
fn address_lists_of_all_conditions_are_among_the_files_about_networks() {
    let text = "
groups: {a: {ip_file: group.txt}, unused: {ip_file: unused.txt}}
proxy:
  exempt: [{ip_file: exempt.txt}]
  limits:
    - {name: slow, by: ip/32, rate: 1/s, when: {any: [{group: a}, {ip_file: limit.txt}]}}
    - {name: no, action: deny, when: {not: {ip_file: [deny.txt, limit.txt]}}}
gatekeeper: {when: {ip_file: gate.txt}}
";
    let config = good(text);
    let mut lists = config.settings.proxy.as_ref().expect("open").network_files().lists;
    lists.sort();
    lists.dedup();
    let files = ["deny.txt", "exempt.txt", "gate.txt", "group.txt", "limit.txt"];
    assert_eq!(lists, files.map(PathBuf::from));
    assert_eq!(good(&config.native).settings, config.settings);
    let exempt = |entry: &str| {
        let text = format!("{{listen: off, exempt: [{entry}], limits: []}}");
        let text = format!("check: {{}}\nproxy: {text}\n");
        let none = |_: &_| StartProblems::default();
        check("t.yaml", text.as_bytes(), 4.0, none).expect("no faults")
    };
    assert_eq!(exempt("{ip_file: a.txt}"), [""; 0], "no client can choose its address");
    assert_eq!(exempt("{not: {ip_file: a.txt}}").len(), 1);
}

#[test]
fn a_list_in_place_of_a_condition_is_one_fault() {
    let groups = |group: &str| format!("groups: {{a: {group}}}\nproxy: {{limits: []}}");
    let denied = "proxy: {limits: [{name: a, action: deny, when: [{path: /}]}]}".to_owned();
    for (text, told) in [
        (limit("[{path: /a}]"), "`when` must be a section"),
        (denied, "`when` must be a section"),
        (limit("{not: [{path: /a}]}"), "`not` must be a section"),
        (limit("{any: [[{path: /a}]]}"), "`any` must be a section"),
        (groups("[x]"), "`groups` must be a section"),
        (groups("x"), "`groups` must be a section"),
        (groups("{not: [{path: /a}]}"), "`not` must be a section"),
    ] {
        let seen = faults(&text);
        assert!(seen.contains(told) && seen.lines().count() == 1, "{text}: {seen}");
    }
}

#[test]
fn a_file_of_groups_that_cannot_be_read_is_one_fault() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("groups.yaml");
    let text = format!("group_files: [{}]\n{}", path.display(), limit("{group: a}"));
    for (content, told) in [
        (None, "groups.yaml: No such file"),
        (Some("a: [\n"), "groups.yaml:1:4: not YAML"),
        (Some("A B: {path: /}\n"), "groups.yaml:1:1: `A B`: a name has 1 to 64 letters"),
    ] {
        content.iter().for_each(|content| fs::write(&path, content).expect("written"));
        let seen = faults(&text);
        assert!(seen.contains(told) && seen.lines().count() == 1, "{seen}");
    }
    fs::write(&path, "b: {path: /}\n").expect("written");
    assert!(faults(&text).contains("names no group: `a`; "), "a good file that lacks it");
}

#[test]
fn a_file_of_groups_is_checked_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("groups.yaml");
    let checked = |text: &str| {
        fs::write(&path, text).expect("written");
        let told = |faults: evenkeel_config::fault::ConfigFaults| faults.to_string();
        evenkeel_config::check_group_file(&path).map(|checked| checked.map_err(told))
    };
    let good = "a: {path: /a}\nb: [{group: a}, {group: of_another_file, query: x}]\n";
    assert_eq!(checked(good), Some(Ok(2)));
    let faulty = checked("a: {path: /a, usr_agent: x}\nb: [{not: {}}]\n").expect("groups");
    let faulty = faulty.expect_err("faults");
    assert!(faulty.contains("groups.yaml:1:15: unknown key `usr_agent` in `groups`"), "{faulty}");
    assert!(faulty.contains("groups.yaml:2:11: `not` is empty"), "{faulty}");
    assert_eq!(faulty.lines().count(), 2, "{faulty}");
    for other in ["", "a: 1", "proxy: {limits: []}", "groups: {a: {path: /}}", "proxi: {listen: 1}"]
    {
        assert_eq!(checked(other), None, "{other}");
    }
    assert_eq!(evenkeel_config::check_group_file(folder.path()), None);
}

#[test]
fn a_condition_where_there_are_no_requests_is_explained() {
    let limit = "{name: a, prefix: x, rate: 1/s, when: {path: /}}";
    for (text, told) in [
        (
            format!("line: {{limits: [{limit}]}}"),
            "cannot be used in `line.limits`: this door knows",
        ),
        (
            "line: {when: {path: /}}".to_owned(),
            "cannot be used in `line`: this door knows only tags",
        ),
        (
            "master: {domains: {a: [{rate: 1/s, burst: 1, when: {path: /}}]}}".to_owned(),
            "cannot be used in `master.domains`: a master knows only identifiers; write `when` in",
        ),
    ] {
        let seen = faults(&text);
        assert!(seen.contains(told) && seen.lines().count() == 1, "{text}: {seen}");
    }
}

#[test]
fn groups_are_named_once_and_used_everywhere() {
    let text = "
groups:
  robots: {user_agent: '*bot*'}
  bad: [{group: robots, not: {ip: 192.0.2.1}}, {query: diff}]
proxy:
  exempt: [{group: robots, ip: 198.51.100.0/24}, 'ip:127.0.0.1']
  limits:
    - {name: slow, by: ip/32, rate: 1/s, when: {group: bad}}
    - {name: no-robots, action: deny, when: {group: [robots, bad]}}
gatekeeper: {when: {group: robots}}
";
    let config = good(text);
    let shown = "exempt:\n    - ip: [198.51.100.0/24]\n      group: [robots]\n    - ip:127.0.0.1\n";
    assert!(config.native.contains(shown), "{}", config.native);
    assert_eq!(good(&config.native).settings.proxy, config.settings.proxy);
    let settings = config.settings;
    let proxy = settings.proxy.expect("open");
    let [robots, bad] = settings.groups.groups.as_slice() else { panic!("two groups") };
    assert_eq!((&*robots.name, robots.index, &*bad.name, bad.index), ("robots", 0, "bad", 1));
    assert_eq!(proxy.limits.len(), 1);
    assert_eq!(proxy.limits[0].when.clauses, [Clause::Group(bad.clone())]);
    let both = [robots, bad].map(|group| Condition::from(Clause::Group(group.clone())));
    assert_eq!(proxy.denials[0].when.clauses, [Clause::Any(both.to_vec())]);
    assert_eq!(proxy.exempt_when[0].clauses.len(), 2);
    assert_eq!(proxy.exempt.len(), 1);
    assert_eq!(settings.gatekeepers[0].when.clauses, [Clause::Group(robots.clone())]);
    for (text, told) in [
        (
            "groups: {a: {}}\nproxy:",
            "a group must not be empty; write what its requests have in common",
        ),
        ("groups: {a: }\nproxy:", "the group `a` has no condition"),
        ("groups: {'a b': {ip: '::1'}}\nproxy:", "`a b`: a name has 1 to 64"),
        ("groups: {a: {group: b}, b: {ip: '::1'}}\nproxy:", "names no group: `b`"),
        ("groups: {robots: {ip: '::1'}, b: {group: robot}}\nproxy:", "did you mean `robots`?"),
    ] {
        assert!(faults(text).contains(told), "{text}: {}", faults(text));
    }
}

#[test]
fn groups_that_name_each_other_again_and_again_are_refused() {
    let limit = "proxy: {limits: [{name: a, by: all, share: 5%, when: {group: g39}}]}\n";
    let of = |second: &dyn Fn(usize) -> String| {
        let mut text = "groups:\n  g0: {path: /a}\n".to_owned();
        for number in 1..40 {
            let (before, second) = (number - 1, second(number - 1));
            text += &format!("  g{number}: {{any: [{{group: g{before}}}, {{{second}}}]}}\n");
        }
        text + limit
    };
    good(&of(&|_| "path: /b".to_owned()));
    let told = faults(&of(&|before| format!("not: {{group: g{before}}}")));
    assert!(told.contains("has more than 4096 conditions"), "{told}");
}

#[test]
fn a_limit_that_denies_counts_nothing() {
    let deny = |more: &str| format!("proxy: {{limits: [{{name: a, action: deny{more}}}]}}");
    let rule = good(&deny(", when: {query: diff}, shadow: true")).settings.proxy.expect("open");
    assert_eq!((&*rule.denials[0].name, rule.denials[0].shadow), ("a", true));
    assert!(rule.limits.is_empty());
    for (more, told) in [
        ("", "without `when` would refuse every request"),
        (", when: {query: a}, rate: 1/s", "`rate` has no effect with `action: deny`"),
        (", when: {query: a}, by: ip/32", "`by` has no effect with `action: deny`"),
    ] {
        let seen = faults(&deny(more));
        assert!(seen.contains(told) && seen.lines().count() == 1, "{more}: {seen}");
    }
}

#[test]
fn groups_and_pages_come_from_files_whose_changes_are_changes_of_the_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (groups, page, main) = (at("groups.yaml"), at("denied.html"), at("evenkeel.yaml"));
    fs::write(&groups, "robots: {user_agent: '*bot*'}\n").expect("written");
    fs::write(&page, "<p>no</p>").expect("written");
    let text = format!(
        "group_files: {}\nproxy:\n  pages: {{'403': {}}}\n  limits: [{{name: a, action: deny, \
         when: {{group: robots}}}}]\n",
        groups.display(),
        page.display()
    );
    fs::write(&main, text).expect("written");
    let mut source = ConfigSource::new(&main);
    let read = source.load(4.0).expect("good").settings;
    let proxy = read.proxy.expect("open");
    assert_eq!(proxy.pages.denied.as_deref(), Some("<p>no</p>"));
    assert_eq!(read.groups.groups.len(), 1);
    let changed = |source: &mut ConfigSource| {
        (0..5).map(|_| source.look(4.0)).find(|change| *change != ConfigChange::None)
    };
    assert_eq!(changed(&mut source), None);
    fs::write(&groups, "robots: {user_agent: '*bot*'}\nmore: {path: '*.php'}\n").expect("written");
    let Some(ConfigChange::Good(config)) = changed(&mut source) else { panic!("a change") };
    assert_eq!(config.settings.groups.groups.len(), 2);
    fs::write(&groups, "robots: {user_agent: '*bot*'}\nmore: {paths: '*.php'}\n").expect("written");
    let Some(ConfigChange::Faulty(faults)) = changed(&mut source) else { panic!("a fault") };
    let told = faults.to_string();
    assert!(told.contains("groups.yaml:2:8: unknown key `paths`"), "{told}");
    fs::write(&groups, "groups:\n  robots: {user_agent: '*bot*'}\n").expect("written");
    let Some(ConfigChange::Faulty(faults)) = changed(&mut source) else { panic!("a fault") };
    let told = faults.to_string();
    assert!(told.contains("groups.yaml:1:1: a file of `group_files` has the names"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    fs::write(&groups, "robots: {user_agent: '*bot*'}\n").expect("written");
    assert!(matches!(changed(&mut source), Some(ConfigChange::Good(_))));
    fs::write(&page, "<p>no!</p>").expect("written");
    assert!(matches!(changed(&mut source), Some(ConfigChange::Good(_))));
    fs::remove_file(&groups).expect("removed");
    let told = source.load(4.0).expect_err("missing").to_string();
    assert!(told.contains("groups.yaml: No such file"), "{told}");
}

/// An operator who no longer wants a group removes its file and its name in the configuration.
#[test]
fn a_change_of_the_configuration_is_seen_while_a_file_that_it_named_is_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (groups, main) = (at("groups.yaml"), at("evenkeel.yaml"));
    fs::write(&groups, "robots: {user_agent: '*bot*'}\n").expect("written");
    fs::write(&main, format!("group_files: {}\nproxy:\n", groups.display())).expect("written");
    let mut source = ConfigSource::new(&main);
    source.load(4.0).expect("good");
    let mut changed =
        || (0..5).map(|_| source.look(4.0)).find(|change| *change != ConfigChange::None);
    assert_eq!(changed(), None);
    fs::remove_file(&groups).expect("removed");
    assert_eq!(changed(), None, "it may be about to be replaced");
    fs::write(&main, "proxy: {cpus: 3}\n").expect("written");
    let Some(ConfigChange::Good(config)) = changed() else { panic!("a change") };
    assert_eq!(config.settings.groups.groups.len(), 0);
    fs::write(&main, format!("group_files: {}\nproxy:\n", groups.display())).expect("written");
    let Some(ConfigChange::Faulty(faults)) = changed() else { panic!("a fault") };
    assert!(faults.to_string().contains("groups.yaml: No such file"), "{faults}");
    fs::write(&groups, "robots: {user_agent: '*bot*'}\n").expect("written");
    assert!(matches!(changed(), Some(ConfigChange::Good(_))), "the file is back");
}

#[test]
fn a_cookie_exempts_and_check_says_what_that_means() {
    let text = "proxy: {exempt: ['cookie:session', 'ip:192.0.2.1']}";
    let proxy = good(text).settings.proxy.expect("open");
    assert_eq!((proxy.exempt.len(), proxy.exempt_when.len()), (1, 1));
    let warned = check("t.yaml", text.as_bytes(), 4.0, |_| StartProblems::default()).expect("good");
    let warned = warned.join("\n");
    let told = "t.yaml:1:17: each client that sends what a condition asks for, such as a cookie";
    assert!(warned.starts_with(told), "{warned}");
    assert!(faults("proxy: {exempt: 'cookie:a b'}").contains("a name has 1 to 64"));
}

#[test]
fn a_name_in_any_folder_is_also_found_in_the_first_one() {
    let condition = when("{path: '*/wp-login.php'}");
    let [Clause::Path(paths)] = condition.clauses.as_slice() else { panic!("a path") };
    for path in ["/wp-login.php", "/blog/wp-login.php", "/a/b/wp-login.php/x"] {
        assert_eq!(paths.matches(path), Truth::Yes, "{path}");
    }
    for path in ["/", "/my-wp-login.php", "/wp-login.php5"] {
        assert_eq!(paths.matches(path), Truth::No, "{path}");
    }
}

#[test]
fn a_robot_that_does_not_exist_is_a_fault() {
    let text = |robots: &str, when: &str| {
        format!("proxy: {{robots: [{robots}], limits: [{{name: a, action: deny, when: {when}}}]}}")
    };
    let google = "{name: google, host: '*.googlebot.com'}";
    for when in ["{bot: google}", "{impostor: 'goo*'}", "{bot: [absent, GOOGLE]}"] {
        good(&text(google, when));
    }
    good(&text("", "{bot: absent}"));
    for (robots, when, told) in [
        (google, "{impostor: gogle}", "`impostor` names no robot: `gogle`; did you mean `google`?"),
        (google, "{not: {bot: [google, bing]}}", "names no robot: `bing`; `proxy.robots` names"),
        ("", "{bot: '*'}", "`bot` names no robot: `*`; `proxy.robots` names none"),
    ] {
        let seen = faults(&text(robots, when));
        assert!(seen.contains(told) && seen.lines().count() == 1, "{when}: {seen}");
    }
    let group = format!("groups: {{a: {{bot: gogle}}}}\n{}", text(google, "{group: a}"));
    assert!(faults(&group).contains("1:19: `bot` names no robot: `gogle`"), "{}", faults(&group));
}

#[test]
fn a_key_of_the_proxy_at_the_left_margin_is_told_its_place() {
    let seen = faults("limits:\n  - {name: a, action: deny, when: {path: /}}\n");
    let told = "t.yaml:1:1: `limits` belongs below `proxy`; write `proxy:` above, and indent";
    assert!(seen.starts_with(told) && seen.lines().count() == 1, "{seen}");
    let seen = faults("rate: 10/s\n");
    let told = "t.yaml:1:1: `rate` belongs to a limit: an entry of the list `proxy.limits`";
    assert!(seen.starts_with(told) && seen.lines().count() == 1, "{seen}");
}

#[test]
fn a_misspelt_action_is_one_fault() {
    let seen = faults("proxy: {limits: [{name: a, action: dney, when: {path: /}}]}");
    assert!(seen.contains("`action` is `dney`: must be one of") && seen.lines().count() == 1);
    let seen = faults("proxy: {limits: [{name: a, action: holt, by: ip/32, rate: 1/s}]}");
    assert!(seen.contains("`action` is `holt`: must be one of") && seen.lines().count() == 1);
}

#[test]
fn a_bracket_that_is_not_closed_is_named() {
    for (text, told) in [
        (
            "groups:\n  bad: {user_agent: [\"*a*\"\nproxy: {}\n",
            "; the `[` in line 2, column 21 may lack its `]`",
        ),
        (
            "proxy: {limits: [{name: a}\nlog: {}\n",
            "; the `[` in line 1, column 17 may lack its `]`",
        ),
    ] {
        let seen = faults(text);
        assert!(seen.contains(told) && seen.lines().count() == 1, "{seen}");
    }
}

#[test]
fn every_kind_of_key_is_read() {
    let config = good(
        "proxy: {limits: [{name: a, share: 0.5, by: [ip/20, ip6/56, user-agent, header:X-Key, \
         cookie:sid, method, path]}, {name: b, share: 1%, by: [path:2, vhost, all, host]}, \
         {name: c, by: ip6/48, rate: 1 per 5s, when: {method: [get, POST], path: //a/../b, \
         vhost: WWW.example.com, header: X-Y, cookie: S}}, {name: d, by: ip/20, rate: 10/s}, \
         {name: e, by: all, window: 10s, max: 7%}]}",
    );
    let limits = config.settings.proxy.expect("open").limits;
    assert_eq!(
        limits[0].by,
        [
            KeyPart::Ip { v4: 20, v6: 56 },
            KeyPart::UserAgent,
            KeyPart::Header("x-key".into()),
            KeyPart::Cookie("sid".into()),
            KeyPart::Method,
            KeyPart::Path(None),
        ]
    );
    assert_eq!(limits[1].by, [KeyPart::Path(Some(2)), KeyPart::Vhost, KeyPart::All, KeyPart::Host]);
    assert_eq!(limits[2].by, [KeyPart::Ip { v4: 32, v6: 48 }]);
    assert_eq!(limits[3].by, [KeyPart::Ip { v4: 20, v6: 40 }]);
    let patterns = |of: &[&str]| Patterns::new(of).expect("patterns");
    let when = Condition::from(Clause::Method(patterns(&["get", "POST"])))
        .and(Clause::Vhost(patterns(&["www.example.com"])))
        .and(Clause::Path(PathPatterns::new(["/b"]).expect("a path")))
        .and(Clause::has_header("x-y"))
        .and(Clause::has_cookie("S"));
    assert_eq!(limits[2].when, when);
    let Algorithm::Debt(slow) = &limits[2].algorithm else { panic!("a rate") };
    let Algorithm::Debt(fast) = &limits[3].algorithm else { panic!("a rate") };
    assert_eq!((slow.burst(), fast.burst()), (Cost::hits(1), Cost::hits(10)));
    let Algorithm::Sliding(window) = &limits[4].algorithm else { panic!("a window") };
    assert_eq!(window.max(), Cost::cpu(Nanos::from_millis(2800)));
}
