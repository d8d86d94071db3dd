package bookwarden.broker;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.api.Test;

class RegistryFormatTest {
    private static final Path SAMPLES = Path.of(System.getProperty("registry.samples"));

    static Stream<Path> valid() throws IOException {
        return samples("valid");
    }

    static Stream<Path> broken() throws IOException {
        return samples("broken");
    }

    private static Stream<Path> samples(String folder) throws IOException {
        try (Stream<Path> files = Files.list(SAMPLES.resolve(folder))) {
            List<Path> found = files.sorted().toList();
            assertTrue(!found.isEmpty());
            return found.stream();
        }
    }

    @ParameterizedTest
    @MethodSource("valid")
    void readsEachValidSample(Path sample) throws IOException {
        Registry read = RegistryFormat.parse(Files.readAllBytes(sample));
        assertEquals("5f2c9a41", read.owner());
        assertEquals("/ledgers", read.idRoot());
        assertTrue(read.clusters().containsKey(read.active()));
    }

    @ParameterizedTest
    @MethodSource("broken")
    void refusesEachBrokenSample(Path sample) throws IOException {
        byte[] value = Files.readAllBytes(sample);
        assertThrows(IOException.class, () -> RegistryFormat.parse(value));
    }

    @Test
    void refusesANegativeEpochOfRegistration() throws IOException {
        String value = Files.readString(SAMPLES.resolve("valid/switched.json"));
        assertThrows(IOException.class, () -> RegistryFormat.parse(value.replace("\"since\": 1", "\"since\": -1")
                .getBytes(StandardCharsets.UTF_8)));
    }

    @Test
    void readsWhatASwitchLeft() throws IOException {
        Registry read = RegistryFormat.parse(Files.readAllBytes(SAMPLES.resolve("valid/switched.json")));
        assertEquals(3, read.epoch());
        assertEquals("b", read.active());
        Registry.Entry a = read.clusters().get("a");
        assertNull(a.storeUrl());
        assertEquals(new Registry.Entry("b", "zk:10.0.0.7:2181", "/bookies-b", "1b5e1c53-6b9b-4b5c-a7a5-0d1a6d8d4c12",
                2), read.clusters().get("b"));
        assertEquals(new Registry.Ownership(true, false, null), read.ownership().get("a"));
        assertEquals(new Registry.Ownership(false, true, null), read.ownership().get("b"));
        assertEquals(Set.of(), read.formerOwners());
    }

    @Test
    void readsWhichLedgersAreOurs() throws IOException {
        Registry read = RegistryFormat.parse(Files.readAllBytes(SAMPLES.resolve("valid/upgraded.json")));
        assertEquals(Set.of("0badc0de", "1badc0de"), read.formerOwners());
        assertEquals(0L, read.ownership().get("b").unmarkedBelow());
        read = RegistryFormat.parse(Files.readAllBytes(SAMPLES.resolve("valid/closed_range.json")));
        assertEquals(4294967296L, read.ownership().get("a").unmarkedBelow());
    }
}
