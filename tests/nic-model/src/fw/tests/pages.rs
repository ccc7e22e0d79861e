use super::*;

const EXCEED: CommandStatus = CommandStatus::EXCEED_LIM;

#[test]
fn pages_are_refused_that_were_given_or_can_not_be() {
    let mut bench = Bench::new(Profile::connectx4());
    bench.plain(Opcode::ENABLE_HCA, 0).ok();
    let bad = (CommandStatus::BAD_PARAM, syndrome::BAD_PAGE);
    assert_eq!(bench.give(&[0x1000, 0x1000]).refused(), bad);
    assert_eq!(bench.give(&[0x1001]).refused(), bad);
    assert_eq!(bench.give(&[1 << 41]).refused(), bad);
    assert_eq!(bench.fw.pages_held(), 0, "a refused GIVE takes nothing");
    bench.give(&[0x1000]).ok();
    assert_eq!(bench.give(&[0x1000]).refused(), bad);
    bench.give(&[]).ok();
    assert_eq!(bench.take(5), [0x1000]);
    bench.give(&[0x1000]).ok();
}

#[test]
fn no_more_pages_are_taken_than_were_asked_for() {
    let mut bench = Bench::initialized(Profile::connectx4());
    assert_eq!(
        bench.give(&[0x9000_0000]).refused(),
        (EXCEED, syndrome::PAGE_COUNT)
    );
    assert!(bench.take(100).is_empty(), "all of them are in use");
}

#[test]
fn a_short_list_is_refused() {
    let mut bench = Bench::new(Profile::connectx4());
    bench.plain(Opcode::ENABLE_HCA, 0).ok();
    let input = input_of(Opcode::MANAGE_PAGES, 1, |i: &mut ManagePagesIn| {
        i.set_input_num_entries(u32::MAX)
    });
    assert_eq!(
        bench.exec(input.as_bytes(), 16).refused().0,
        CommandStatus::BAD_INP_LEN
    );
    let input = input_of(Opcode::MANAGE_PAGES, 2, |i: &mut ManagePagesIn| {
        i.set_input_num_entries(u32::MAX)
    });
    assert_eq!(
        bench.exec(input.as_bytes(), 16).refused().0,
        CommandStatus::BAD_OUTP_LEN
    );
}

#[test]
fn a_command_waits_for_pages_that_the_host_gives() {
    let mut bench = Bench::initialized(Profile::connectx4());
    bench.create_eq(&[0xa, 0xb]);
    bench.fw.exhaust_pages();
    let alloc: AllocPdIn = input_of(Opcode::ALLOC_PD, 0, |_| {});
    assert_eq!(bench.exec(alloc.as_bytes(), 16), Reply::Pending);
    let asked = bench.plane.events.clone();
    let [
        Event::PageRequest {
            function_id: 0,
            num_pages: 256,
        },
    ] = asked[..]
    else {
        panic!("{asked:?}");
    };
    // Other commands go on, and the page slot is not blocked.
    bench.plain(Opcode::QUERY_VPORT_STATE, 0);
    let pages: Vec<u64> = (0..256).map(|i| 0x8_0000_0000 + i * 4096).collect();
    bench.give(&pages).ok();
    assert_eq!(bench.fw.pages_held(), 12_874 + 256);
    bench.run();
    assert!(
        bench
            .plane
            .events
            .contains(&Event::Command { slots: 1 << 31 | 1 })
    );
    let unused = bench.take(768);
    assert_eq!(unused.len(), 255);
    assert!(unused.iter().all(|p| pages.contains(p)));
}

#[test]
fn a_command_fails_when_the_host_can_not_give() {
    let mut bench = Bench::initialized(Profile::connectx4());
    bench.create_eq(&[0xa, 0xb]);
    bench.fw.exhaust_pages();
    let alloc: AllocPdIn = input_of(Opcode::ALLOC_PD, 0, |_| {});
    bench.put(3, alloc.as_bytes(), 16);
    bench.write32(0x18, 1 << 3);
    bench.run();
    let cant: ManagePagesIn = input_of(Opcode::MANAGE_PAGES, 0, |_| {});
    bench.exec_in(31, cant.as_bytes(), 16).ok();
    let refused = bench.reply(3, 16).refused();
    assert_eq!(refused, (CommandStatus::NO_RESOURCES, syndrome::NO_PAGES_GIVEN));
}

#[test]
fn without_an_event_queue_nobody_is_asked() {
    let mut bench = Bench::initialized(Profile::connectx4());
    bench.fw.exhaust_pages();
    let refused = bench.plain(Opcode::ALLOC_PD, 0).refused();
    assert_eq!(refused, (CommandStatus::NO_RESOURCES, syndrome::NO_PAGES_GIVEN));
}

#[test]
fn pages_of_destroyed_objects_are_used_again() {
    let mut bench = Bench::initialized(Profile::vf());
    let room = u64::from(Profile::vf().object_pages) * 4096 / 16;
    for _ in 0..room + 100 {
        let pd = bench.plain(Opcode::ALLOC_PD, 0).ok();
        let pd = u32::from_be_bytes(*pd[8..].first_chunk().unwrap());
        bench
            .command(Opcode::DEALLOC_PD, |i: &mut DeallocPdIn| i.set_pd(pd).unwrap())
            .ok();
        if bench.fw.violations().total() != 0 {
            break;
        }
    }
    assert_eq!(bench.complaints(), Vec::<String>::new());
}

#[test]
fn a_request_that_a_test_raises_can_be_met() {
    let mut bench = Bench::initialized(Profile::connectx4());
    bench.create_eq(&[0xb]);
    bench.fw.request_pages(2);
    bench.run();
    bench.give(&[0x7_0000_0000, 0x7_0000_1000]).ok();
    bench.fw.request_pages(-2);
    bench.run();
    assert_eq!(bench.take(2), [0x7_0000_0000, 0x7_0000_1000]);
    assert_eq!(bench.plane.events.len(), 2);
}

#[test]
fn unmapping_a_page_that_the_firmware_holds_is_seen() {
    let mut bench = Bench::initialized(Profile::connectx4());
    bench.fw.host_unmapped(0x1_0000_0800, 8);
    bench.fw.host_unmapped(0x3000, 0x1000);
    assert_eq!(bench.complaints().len(), 1);
    assert!(
        bench.complaints()[0].starts_with("1 pages"),
        "{:?}",
        bench.complaints()
    );
}
