use super::*;
use evenkeel_telemetry::snapshot::{
    ClientAbout, ClientTimesLoad, LoadUnit, QueueInstanceRow, QueueLoad, SharedQueueLoad,
    SwarmLoad, TopSnapshot,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::io;

fn row(key: &str, cpu: f64, level: Option<f64>) -> ClientRow {
    ClientRow {
        key: key.to_owned(),
        id: String::new(),
        level,
        wait: 4.5,
        cpu_per_second: cpu,
        requests_per_second: 12.0 - cpu,
        wait_average: 2.0,
        last_seen: 3.0,
        cpu_total: 100.0,
        about: ClientAbout::default(),
    }
}

fn snapshot(now: f64, busy_seconds: f64) -> TopSnapshot {
    let table = |name: &str, unit: &str, rows| LimitTable {
        door: "proxy".to_owned(),
        name: name.to_owned(),
        unit: unit.to_owned(),
        action: "queue".to_owned(),
        shadow: false,
        would: 0,
        rows,
    };
    let clients = vec![
        row("198.51.100.1", 0.5, Some(29.0)),
        row("203.0.113.7", 1.5, Some(-12.25)),
        row("evil\x1b[2J", 0.0, None),
    ];
    TopSnapshot {
        now,
        load: vec![LoadSnapshot {
            door: "proxy".to_owned(),
            working: 2,
            work_unit: LoadUnit::Cpu,
            cpus: 2.0,
            measures_rate: false,
            work_rate: None,
            busy_seconds,
            crowd: Some(QueueLoad { waiting: 14, running: 2, concurrency: 4 }),
            shared_queue: None,
            engines: Vec::new(),
            running: Vec::new(),
            oldest_waiting: None,
            swarm: None,
            client_times: ClientTimesLoad::default(),
        }],
        known: vec!["ip".to_owned(), "hits".to_owned()],
        limits: vec![
            table("ip", "cpu", clients),
            table("hits", "hits", vec![row("198.51.100.9", 3.0, None)]),
        ],
        peers: None,
        store: None,
        master: None,
        gatekeepers: Vec::new(),
        robots: Vec::new(),
        refused_config: None,
    }
}

fn screen(view: &TopView) -> String {
    let mut terminal = Terminal::new(TestBackend::new(80, 18)).expect("a terminal");
    terminal.draw(|frame| draw(frame, view)).expect("drawn");
    let lines = terminal.backend().to_string();
    let lines = lines.lines().map(|line| line.trim_matches('"').trim_end());
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

fn seen() -> TopView {
    let mut view = TopView::new("127.0.0.1:9970", None);
    view.answered(Ok((String::new(), snapshot(1_790_000_000.0, 100.0))));
    view.answered(Ok((String::new(), snapshot(1_790_000_002.0, 103.0))));
    view
}

fn press(view: &mut TopView, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\t' => KeyCode::Tab,
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            key => KeyCode::Char(key),
        };
        assert!(view.pressed(KeyEvent::new(code, KeyModifiers::NONE)).is_continue());
    }
}

#[test]
fn the_whole_screen() {
    let expected = [
        " evenkeel 127.0.0.1:9970  14:13:22 UTC",
        " proxy     [||||||||||||    ] 1.50 of 2 CPUs  working 2  waiting 14  slots 2/4",
        "  ip  hits   proxy, queue",
        "     Level     Wait    Cpu/s  Share    Req/s     Total  Last  Client",
        "    -12.25     2.00     1.50    75%    10.50     100.0     3  203.0.113.7",
        "     29.00     2.00     0.50    25%    11.50     100.0     3  198.51.100.1",
        "         -     2.00     0.00     0%    12.00     100.0     3  evil\\u001b[2J",
    ];
    let drawn = screen(&seen());
    let lines: Vec<_> = drawn.lines().collect();
    assert_eq!(lines[..expected.len()], expected);
    assert_eq!(lines.last(), Some(&KEYS));
}

#[test]
fn a_door_in_tokens_is_shown_in_tokens() {
    let in_tokens = |now, busy| {
        let mut snapshot = snapshot(now, busy);
        let load = &mut snapshot.load[0];
        (load.work_unit, load.measures_rate) = (LoadUnit::Tokens, true);
        snapshot.limits[1].unit = "money".to_owned();
        snapshot
    };
    let mut view = TopView::new("127.0.0.1:9970", None);
    view.answered(Ok((String::new(), in_tokens(1_790_000_000.0, 100.0))));
    view.answered(Ok((String::new(), in_tokens(1_790_000_002.0, 103.0))));
    let expected = [
        " proxy     [                ] 1500 tokens/s  working 2  waiting 14  slots 2/4",
        "  ip  hits   proxy, weighted tokens, queue",
        "     Level     Wait Tokens/s  Share    Req/s     Total  Last  Client",
        "    -12250     2.00     1500    75%    10.50    100000     3  203.0.113.7",
    ];
    let drawn = screen(&view);
    assert_eq!(drawn.lines().skip(1).take(4).collect::<Vec<_>>(), expected);
    press(&mut view, "\t");
    let drawn = screen(&view);
    assert!(drawn.contains("proxy, money, queue") && drawn.contains("Money/s"), "{drawn}");
    assert!(drawn.contains("3.0000"), "{drawn}");
    let mut measured = in_tokens(1_790_000_004.0, 106.0);
    measured.load[0].work_rate = Some(2.0);
    view.answered(Ok((String::new(), measured)));
    assert!(screen(&view).contains("[||||||||||||    ] 1500 of 2000 tokens/s"));
}

#[test]
fn the_requests_with_the_backend_are_shown_on_request_and_told_if_they_last() {
    let request = |route: &str, age, stalled| OpenRequestRow {
        client: "203.0.113.7".to_owned(),
        route: route.to_owned(),
        age,
        stalled,
    };
    let mut all = snapshot(1_790_000_000.0, 100.0);
    all.load[0].running = vec![request("GET /x", 27.0, false), request("POST /up\x1b", 1.5, true)];
    all.load[0].oldest_waiting = Some(request("GET /y", 12.0, false));
    let mut view = TopView::new("127.0.0.1:9970", None);
    view.answered(Ok((String::new(), all)));
    let told = "   1 request to /x has been with the backend for 27 s while 14 wait";
    let drawn = screen(&view);
    assert_eq!(drawn.lines().nth(2), Some(told));
    assert!(drawn.contains("Level") && !drawn.contains("GET /x"), "{drawn}");
    press(&mut view, "b");
    let expected = [
        "       Age  Stage       Client                  Request",
        "      27.0  working     203.0.113.7             GET /x",
        "       1.5  client      203.0.113.7             POST /up\\u001b",
        "      12.0  waiting     203.0.113.7             GET /y",
    ];
    let drawn = screen(&view);
    assert_eq!(drawn.lines().skip(4).take(4).collect::<Vec<_>>(), expected);
    press(&mut view, "b");
    assert_eq!(view.mode, KeyMode::Look);
}

#[test]
fn a_swarm_and_its_groups_have_lines_of_their_own() {
    let group = BurningGroupRow {
        id: "5b0a63c2b9d84e57".to_owned(),
        name: "User-Agent 'swarm/1\u{1b}'".to_owned(),
        when: "{user_agent: 'swarm/1*'}".to_owned(),
        percent_of_strangers: 97.0,
        percent_of_clients: 4.8,
        seconds: 120.0,
    };
    let mut snapshot = snapshot(1_790_000_000.0, 100.0);
    snapshot.load[0].swarm = Some(SwarmLoad {
        since: 1_789_999_700.0,
        seconds: 300.0,
        strangers: 12,
        strangers_cost: 80.54,
        visitors: 3,
        waiting_room_new: 31,
        waiting_room_returned: 9,
        newcomer_wait: Some(3.21),
        groups: vec![group],
    });
    let mut view = TopView::new("127.0.0.1:9970", None);
    view.answered(Ok((String::new(), snapshot)));
    let drawn = screen(&view);
    let lines: Vec<_> = drawn.lines().collect();
    assert!(lines[1].starts_with(" proxy     ["), "{drawn}");
    assert_eq!(
        lines[2],
        "   swarm for 5 min (80.5 CPU-s): 12 strangers wait, 40 in the waiting room, newc"
    );
    let last = "     last in line: User-Agent 'swarm/1\\u001b' (97 % of strangers)";
    assert_eq!(lines[3], last);
    assert!(lines[4].starts_with("  ip  hits"), "{drawn}");
}

#[test]
fn a_shared_queue_says_what_is_of_this_instance_and_what_of_all() {
    let mut snapshot = snapshot(1_790_000_000.0, 100.0);
    snapshot.load[0].shared_queue = Some(SharedQueueLoad {
        owner: "a:8080".to_owned(),
        owns: true,
        seconds: 300.0,
        term: 3,
        takeovers: 1,
        slots: 4,
        waiting: 40,
        running: 4,
        instances: ["a:8080", "b:8080"]
            .map(|name| QueueInstanceRow {
                name: name.to_owned(),
                here: name == "a:8080",
                owns: name == "a:8080",
                silent: false,
                apart: false,
                waiting: 14,
                running: 2,
                kept: None,
            })
            .to_vec(),
    });
    let mut view = TopView::new("127.0.0.1:9970", None);
    view.answered(Ok((String::new(), snapshot)));
    let drawn = screen(&view);
    let expected = [
        " proxy     [                ] - of 2 CPUs  working 2",
        "   one queue for 2 instances; this instance owns it for 5 min",
        "   here 14 wait and 2 run; in all 40 wait and 4 run on 4 slots",
    ];
    assert_eq!(drawn.lines().skip(1).take(3).collect::<Vec<_>>(), expected);
}

#[test]
fn a_limit_in_shadow_shows_what_it_would_do() {
    let in_shadow = |now, would| {
        let mut snapshot = snapshot(now, 100.0);
        snapshot.limits[0].shadow = true;
        snapshot.limits[0].would = would;
        snapshot.limits[0].rows[0].wait = 0.0;
        snapshot.limits[0].rows[1].wait = 8.25;
        snapshot
    };
    let mut view = TopView::new("127.0.0.1:9970", None);
    view.answered(Ok((String::new(), in_shadow(1_790_000_000.0, 312))));
    assert!(screen(&view).contains("shadow: would queue, 312 so far; nothing is enforced"));
    view.answered(Ok((String::new(), in_shadow(1_790_000_002.0, 319))));
    let expected = [
        "  ip  hits   proxy, shadow: would queue 3.5/s, 319 so far; nothing is enforced",
        "     Level    Would    Cpu/s  Share    Req/s     Total  Last  Client",
        "    -12.25     8.25     1.50    75%    10.50     100.0     3  203.0.113.7",
        "     29.00     0.00     0.50    25%    11.50     100.0     3  198.51.100.1",
    ];
    let drawn = screen(&view);
    assert_eq!(drawn.lines().skip(2).take(4).collect::<Vec<_>>(), expected);
    press(&mut view, "ssr");
    assert_eq!(view.rows().last().map(|row| &*row.key), Some("203.0.113.7"), "by what it would");
    // The other limit is enforced, and the screen says so.
    press(&mut view, "\t");
    assert!(screen(&view).contains("proxy, queue\n"), "{}", screen(&view));
    // The counters of a restarted server begin at zero.
    press(&mut view, "\t");
    view.answered(Ok((String::new(), in_shadow(1_790_000_004.0, 2))));
    assert!(screen(&view).contains("shadow: would queue, 2 so far"), "{}", screen(&view));
}

#[test]
fn keys_choose_limit_order_and_filter() {
    let mut view = seen();
    let clients = |view: &TopView| {
        let rows = view.rows();
        rows.iter().map(|row| row.key.chars().take(5).collect::<String>()).collect::<Vec<_>>()
    };
    press(&mut view, "sss");
    assert_eq!((view.order, clients(&view)[0].as_str()), (RowOrder::Requests, "evil\x1b"));
    press(&mut view, "r");
    assert_eq!(clients(&view), ["203.0", "198.5", "evil\x1b"]);
    press(&mut view, "/EvIl");
    assert_eq!(clients(&view), ["evil\x1b"]);
    assert!(screen(&view).ends_with("show names with: EvIl_"), "{}", screen(&view));
    press(&mut view, "q?");
    assert_eq!(view.filter, "EvIlq?", "keys are letters while a filter is typed");
    assert!(screen(&view).contains("no client matches the filter"));
    press(&mut view, "\x1b\t");
    assert_eq!((view.shown(), clients(&view)), (1, vec!["198.5".to_owned()]));
    assert!(screen(&view).contains("Hits/s"));
    press(&mut view, "\t?");
    assert_eq!(view.shown(), 0);
    assert!(screen(&view).contains("any key closes this help"));
    press(&mut view, "q");
    assert_eq!(view.mode, KeyMode::Look);
    assert!(view.pressed(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)).is_break());
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(seen().pressed(interrupt).is_break());
}

#[test]
fn a_server_that_goes_away_stays_as_it_was_last_seen() {
    let mut view = seen();
    let why = io::Error::new(io::ErrorKind::ConnectionRefused, "refused\x1b[1m");
    view.answered(Err(crate::cli::remote::AdminClientError::Unreachable {
        address: "x:1".into(),
        why,
    }));
    let drawn = screen(&view);
    assert!(drawn.contains("no server answers at x:1") && drawn.contains("203.0.113.7"), "{drawn}");
    assert!(!drawn.contains('\x1b'));
    // After a restart the counters begin at zero, so the load is unknown.
    view.answered(Ok((String::new(), snapshot(1_790_000_004.0, 1.0))));
    assert!(screen(&view).contains("- of 2 CPUs"));
}

#[test]
fn the_limit_that_was_asked_for_or_a_word_that_there_is_none() {
    let mut view = TopView::new("x", Some("hits"));
    assert!(screen(&view).contains("asking ..."));
    view.answered(Ok((String::new(), snapshot(1.0, 1.0))));
    assert_eq!(view.shown(), 1);
    let mut view = TopView::new("x", Some("nosuch"));
    view.answered(Ok((String::new(), snapshot(1.0, 1.0))));
    assert!(screen(&view).contains("there is no limit nosuch; known are: ip, hits"));
}

#[test]
fn any_size_of_a_terminal_is_drawn_on() {
    let mut view = seen();
    for key in ["", "/", "\x1b?"] {
        press(&mut view, key);
        for (width, height) in [(0, 0), (1, 1), (5, 3), (300, 2), (20, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
            terminal.draw(|frame| draw(frame, &view)).expect("drawn");
        }
    }
}
