# frozen_string_literal: true

# Sidekiq jobs that wait for a turn of their tenant, so that no tenant's jobs delay all others.
#
#     class ConvertJob
#       include Sidekiq::Job
#       sidekiq_options 'turn' => true        # the first argument is the tenant
#     end
#
# A job that waits needs a thread: set the concurrency far higher than `line.turns.slots`.

require 'sidekiq'
require 'socket'
require 'uri'

# Runs jobs with the option `turn` when it is the turn of their first argument.
class SidekiqTurns
  # There is no turn now. Sidekiq tries the job again later.
  class NoTurn < StandardError; end

  def initialize(door = ENV.fetch('EVENKEEL_LINE', 'tcp://127.0.0.1:7070'))
    @door = URI(door)
  end

  def call(_job, message, _queue)
    return yield unless message['turn']

    tag = "tenant:#{message['args'].first}".tr("\n", ' ')
    connection = take(tag)
    begin
      yield
    ensure
      # A closed connection gives its turn back.
      connection&.close
    end
  end

  private

  def take(tag)
    connection = connect
    connection.write("TAKE #{tag}\n")
    reply = connection.gets.to_s.chomp
    return connection if reply.start_with?('TURN ')

    connection.close
    raise NoTurn, reply if %w[LATE BUSY].include?(reply)

    Sidekiq.logger.warn("no turn for #{tag}: #{reply.empty? ? 'no answer' : reply}")
    nil
  rescue SystemCallError => e
    Sidekiq.logger.warn("no turn for #{tag}: #{e.message}")
    nil
  end

  def connect
    return UNIXSocket.new(@door.path) if @door.scheme == 'unix'

    Socket.tcp(@door.host, @door.port, connect_timeout: 1)
  end
end

Sidekiq.configure_server do |config|
  config.server_middleware { |chain| chain.add(SidekiqTurns) }
end
